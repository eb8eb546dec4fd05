"""Whose pieces are whose, over real snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunkstore.chunk_id import ChunkId
from dieselfs.node_memory.piece import PIECE_BYTES, Piece
from dieselfs.peercache.known_chunks import KnownChunks
from dieselfs.peercache.members import Member
from dieselfs.peercache.node_share import NodeShare
from dieselfs.peercache.placement import Placement
from dieselfs.peercache.runtime import Address
from dieselfs.peercache.shares import Shares
from metadata.snapshot import Snapshot
from tests.dieselfs.peercache.peer_nodes import make_snapshots

MEMBERS = [Member(f"node-{number}", Address("host", 1 + number), 100) for number in range(3)]
LARGE_BYTES = 4 * PIECE_BYTES + 5


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[tuple[Snapshot, Snapshot]]:
    """The second has the first one's chunks, some more, and a large file."""
    first, second = make_snapshots(tmp_path, 160, 160, large_bytes=LARGE_BYTES)
    with Snapshot.open(first.snapshot) as one, Snapshot.open(second.snapshot) as two:
        yield one, two


def test_each_known_chunk_is_there_once_in_order(snapshots: tuple[Snapshot, Snapshot]) -> None:
    one, two = snapshots
    known = KnownChunks((one, two))
    ids = [row.tobytes() for row in known.ids]
    assert ids == sorted({*map(bytes, one.columns.chunk_id), *map(bytes, two.columns.chunk_id)})
    assert len(known) == two.chunk_count > one.chunk_count
    assert len(KnownChunks(())) == 0
    pieces = [piece for at in range(len(known)) for piece in known.pieces(at)]
    small = [piece for piece in pieces if piece.file is None]
    large = [piece for piece in pieces if piece.file is not None]
    assert len({piece.name for piece in pieces}) == len(pieces)
    assert len(small) == two.chunk_count - 1
    assert sum(piece.length for piece in large) == LARGE_BYTES
    assert [piece.number for piece in large] == list(range(5))


def test_a_piece_is_its_chunks_owner_s(snapshots: tuple[Snapshot, Snapshot]) -> None:
    shares, placement = Shares(), Placement(MEMBERS)
    known = KnownChunks(snapshots)
    pieces = [piece for at in range(len(known)) for piece in known.pieces(at)]
    assert not any(shares.owns(piece.name) for piece in pieces), "alone it owns nothing"
    assert len(shares.owned_of(known.ids)) == 0

    def owned_by(number: int) -> set[str]:
        found = {piece.name for piece in pieces if is_of(placement, number, piece)}
        shares.place(placement, MEMBERS[number].id)
        assert {piece.name for piece in pieces if shares.owns(piece.name)} == found
        shares.place(placement, MEMBERS[number].id)
        shares.prepare([piece.name for piece in pieces])
        assert {piece.name for piece in pieces if shares.owns(piece.name)} == found
        owned = {known.ids[at].tobytes() for at in shares.owned_of(known.ids)}
        assert owned == {piece.chunk.id.value for piece in pieces if piece.name in found}
        return found

    parts = [owned_by(number) for number in range(3)]
    assert sum(map(len, parts)) == len(pieces)
    shares.prepare([])
    shares.place(None)
    assert not any(shares.owns(piece.name) for piece in pieces)


def is_of(placement: Placement, number: int, piece: Piece) -> bool:
    owner = placement.owner(piece.chunk.id)
    return owner is not None and owner.id == MEMBERS[number].id


def test_a_share_follows_the_view_and_the_snapshots(
    snapshots: tuple[Snapshot, Snapshot],
) -> None:
    shares, known, held, clock = Shares(), [snapshots[0]], list[str](), [0.0]
    share = NodeShare(shares, lambda: known, lambda: held, lambda: clock[0])
    share.update()
    assert share.pieces == ()
    shares.place(Placement(MEMBERS[:1]), MEMBERS[0].id)
    assert share.update()
    assert not share.update()
    assert len(share.pieces) == snapshots[0].chunk_count
    assert share.size_bytes == sum(piece.length for piece in share.pieces)

    shares.place(Placement(MEMBERS[:1]), MEMBERS[0].id)
    assert not share.update(), "another view with the same members"
    known.append(snapshots[1])
    assert share.update()
    assert len(share.pieces) == snapshots[1].chunk_count - 1 + 5
    everything = share.size_bytes

    shares.place(Placement(MEMBERS), MEMBERS[0].id)
    assert share.update()
    assert 0 < share.size_bytes < everything

    assert share.held() == (0, 0)
    held += [share.pieces[0].name, share.pieces[-1].name, str(ChunkId(bytes(16)))]
    assert share.held() == (0, 0), "counted once a second"
    clock[0] += 1.0
    assert share.held() == (2, share.pieces[0].length + share.pieces[-1].length)


def test_ids_are_read_as_rows(snapshots: tuple[Snapshot, Snapshot]) -> None:
    ids = KnownChunks(snapshots[:1]).ids
    assert ids.shape == (snapshots[0].chunk_count, 16)
    assert ids.dtype == np.uint8

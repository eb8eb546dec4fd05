"""Whose pieces are whose, over real snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunkstore.chunk_id import ChunkId
from dieselfs.cache.membership.owners import Shares
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.peers.node_share import KnownChunks, NodeShare
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.peers.peer_nodes import make_snapshots

MEMBERS = [Member(f"node-{number}", PeerAddress("host", 1 + number), 100) for number in range(3)]
LARGE_BYTES = 4 * CACHE_BLOCK_BYTES + 5


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
    blocks = [block for at in range(len(known)) for block in known.blocks(at)]
    small = [block for block in blocks if block.file is None]
    large = [block for block in blocks if block.file is not None]
    assert len({block.name for block in blocks}) == len(blocks)
    assert len(small) == two.chunk_count - 1
    assert sum(block.length for block in large) == LARGE_BYTES
    assert [block.number for block in large] == list(range(5))


def test_a_piece_is_its_chunks_owner_s(snapshots: tuple[Snapshot, Snapshot]) -> None:
    shares, placement = Shares(), Placement(MEMBERS)
    known = KnownChunks(snapshots)
    blocks = [block for at in range(len(known)) for block in known.blocks(at)]
    assert not any(shares.owns(block.name) for block in blocks), "alone it owns nothing"
    assert len(shares.owned_of(known.ids)) == 0

    def owned_by(number: int) -> set[str]:
        found = {block.name for block in blocks if is_of(placement, number, block)}
        shares.place(placement, MEMBERS[number].id)
        assert {block.name for block in blocks if shares.owns(block.name)} == found
        shares.place(placement, MEMBERS[number].id)
        shares.prepare([block.name for block in blocks])
        assert {block.name for block in blocks if shares.owns(block.name)} == found
        owned = {known.ids[at].tobytes() for at in shares.owned_of(known.ids)}
        assert owned == {block.chunk.id.value for block in blocks if block.name in found}
        return found

    parts = [owned_by(number) for number in range(3)]
    assert sum(map(len, parts)) == len(blocks)
    shares.prepare([])
    shares.place(None)
    assert not any(shares.owns(block.name) for block in blocks)


def is_of(placement: Placement, number: int, block: CacheBlock) -> bool:
    owner = placement.owner(block.chunk.id)
    return owner is not None and owner.id == MEMBERS[number].id


def test_a_share_follows_the_view_and_the_snapshots(
    snapshots: tuple[Snapshot, Snapshot],
) -> None:
    shares, known, cached, clock = Shares(), [snapshots[0]], list[str](), [0.0]
    share = NodeShare(shares, lambda: known, lambda: cached, lambda: clock[0])
    share.update()
    assert share.blocks == ()
    shares.place(Placement(MEMBERS[:1]), MEMBERS[0].id)
    assert share.update()
    assert not share.update()
    assert len(share.blocks) == snapshots[0].chunk_count
    assert share.size_bytes == sum(block.length for block in share.blocks)

    shares.place(Placement(MEMBERS[:1]), MEMBERS[0].id)
    assert not share.update(), "another view with the same members"
    known.append(snapshots[1])
    assert share.update()
    assert len(share.blocks) == snapshots[1].chunk_count - 1 + 5
    everything = share.size_bytes

    shares.place(Placement(MEMBERS), MEMBERS[0].id)
    assert share.update()
    assert 0 < share.size_bytes < everything

    assert share.cached() == (0, 0)
    cached += [share.blocks[0].name, share.blocks[-1].name, str(ChunkId(bytes(16)))]
    assert share.cached() == (0, 0), "counted once a second"
    clock[0] += 1.0
    assert share.cached() == (2, share.blocks[0].length + share.blocks[-1].length)


def test_ids_are_read_as_rows(snapshots: tuple[Snapshot, Snapshot]) -> None:
    ids = KnownChunks(snapshots[:1]).ids
    assert ids.shape == (snapshots[0].chunk_count, 16)
    assert ids.dtype == np.uint8

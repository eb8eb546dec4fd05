from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.prefetch import chunk_uses
from dieselfs.prefetch.chunk_uses import ChunkUses, interleaved
from dieselfs.prefetch.plan_file import ReadingPlan
from metadata.records import ChunkRecord
from metadata.snapshot import Snapshot
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.metadata.snapshot_trees import PETS, Tree, build, chunk_id


@st.composite
def snapshots(draw: st.DrawFn) -> MadeSnapshot:
    """With empty files, chunks of nothing else, and large ones."""
    small = st.lists(st.integers(0, 3), min_size=1, max_size=6)
    large = st.sampled_from([[MAX_WHOLE_BYTES + 1], [MAX_WHOLE_BYTES, 1], [5, MAX_WHOLE_BYTES]])
    limit = st.just([MAX_WHOLE_BYTES])
    chunks = draw(st.lists(st.one_of(small, small, small, large, limit), min_size=1, max_size=8))
    waste = draw(st.lists(st.integers(0, 2), max_size=len(chunks)))
    return MadeSnapshot(chunks, waste)


@st.composite
def orders(draw: st.DrawFn) -> tuple[MadeSnapshot, npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """A snapshot, an order of some of its files, some of them repeatedly, and its groups, some of
    them empty."""
    snapshot = draw(snapshots())
    inode = st.integers(0, snapshot.file_count - 1)
    order = draw(st.lists(inode, max_size=30))
    cuts = draw(st.lists(st.integers(0, len(order)), max_size=5))
    return (
        snapshot,
        np.array(order, np.uint32),
        np.array([0, *sorted(cuts), len(order)], np.int64),
    )


@given(orders(), st.sampled_from([1, 3, 1 << 16]))
def test_uses_are_those_found_by_reading_the_order(
    case: tuple[MadeSnapshot, npt.NDArray[np.uint32], npt.NDArray[np.int64]], files_at_once: int
) -> None:
    snapshot, inodes, group_start = case
    with mock.patch.object(chunk_uses, "_FILES_AT_ONCE", files_at_once):
        uses = ChunkUses.of(snapshot.as_snapshot(), inodes)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    read = [0]
    for position, inode in enumerate(inodes.tolist()):
        chunk = int(snapshot.columns.chunk[inode])
        payload = snapshot.chunk(chunk).payload_bytes
        is_fetched = payload <= MAX_WHOLE_BYTES or len(snapshot.files_in_chunk(chunk)) == 1
        read.append(read[-1] + (int(snapshot.columns.length[inode]) if is_fetched else 0))
        if is_fetched and payload:
            first.setdefault(chunk, position)
            last[chunk] = position
    assert uses.chunks.tolist() == list(first)
    assert uses.first.tolist() == list(first.values())
    assert uses.last.tolist() == [last[chunk] for chunk in first]
    assert uses.payload_bytes.tolist() == [snapshot.chunk(c).payload_bytes for c in first]
    assert uses.read_bytes.tolist() == read
    assert uses.files == len(inodes)
    assert len(uses) == len(first)

    groups = [
        sum(
            snapshot.chunk(chunk).payload_bytes
            for chunk in first
            if first[chunk] < end and last[chunk] >= begin
        )
        if end > begin
        else None
        for begin, end in zip(group_start[:-1].tolist(), group_start[1:].tolist(), strict=True)
    ]
    found = uses.group_bytes(group_start).tolist()
    assert len(found) == len(groups)
    assert all(wanted is None or wanted == size for wanted, size in zip(groups, found, strict=True))
    assert max(found, default=0) == max((size for size in groups if size), default=0)


class SmallChunks(Tree):
    """Chunk 2, which holds a file of 5 GB, stays a large one."""

    @property
    def chunks(self) -> dict[bytes, ChunkRecord]:
        return {
            id: record if id == chunk_id(2) else replace(record, payload_bytes=200)
            for id, record in super().chunks.items()
        }


def test_a_real_snapshot(tmp_path: Path) -> None:
    with Snapshot.open(build(SmallChunks(PETS.files), tmp_path)) as snapshot:
        paths = [b"README", b"cat/2.jpg", b"cat/big/1.jpg", b"dog/\xff\n", b"cat/1.jpg", b"README"]
        uses = ChunkUses.of(snapshot, snapshot.resolve_many(paths).astype(np.uint32))
        readme, cat = snapshot.resolve("README"), snapshot.resolve("cat/1.jpg")
        assert readme is not None
        assert cat is not None
        assert uses.chunks.tolist() == [snapshot.chunk_number(readme), snapshot.chunk_number(cat)]
        assert (uses.first.tolist(), uses.last.tolist()) == ([0, 2], [5, 4])
        assert uses.payload_bytes.tolist() == [200, 200]
        assert uses.read_bytes.tolist() == [0, 11, 11, 28, 28, 128, 139]
        assert uses.group_bytes(np.array([0, 2, 5, 6])).tolist() == [200, 400, 200]


def test_no_files() -> None:
    uses = ChunkUses.of(MadeSnapshot([[1]]).as_snapshot(), np.empty(0, np.uint32))
    assert (len(uses), uses.files, uses.read_bytes.tolist()) == (0, 0, [0])
    assert uses.group_bytes(np.array([0])).tolist() == []
    assert uses.group_bytes(np.array([0, 0])).tolist() == [0]


def test_lengths_beyond_32_bits_are_counted_exactly() -> None:
    snapshot = MadeSnapshot([[MAX_WHOLE_BYTES - 1, 1]] * 1000)
    inodes = np.arange(2000, dtype=np.uint32)
    uses = ChunkUses.of(snapshot.as_snapshot(), inodes)
    assert uses.read_bytes[-1] == 1000 * MAX_WHOLE_BYTES
    assert uses.group_bytes(np.array([0, 1000, 2000])).tolist() == [500 * MAX_WHOLE_BYTES] * 2


def plan(inodes: Sequence[int], group_start: Sequence[int]) -> ReadingPlan:
    return ReadingPlan("1-a", np.array(inodes, np.uint32), np.array(group_start, np.int64), "/s")


def test_one_order_is_interleaved_to_itself() -> None:
    one = plan([3, 1, 2], [0, 1, 3])
    assert interleaved([one]) is one


@given(st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=2, max_size=4), st.data())
def test_orders_are_taken_in_turn(orders: list[list[int]], data: st.DataObject) -> None:
    longest = max(orders, key=len)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(longest)), max_size=3)))
    plans = [
        plan(order, [0, *cuts, len(order)] if order is longest else [0, len(order)])
        for order in orders
    ]
    found = interleaved(plans)
    wanted = [order[turn] for turn in range(len(longest)) for order in orders if turn < len(order)]
    assert found.inodes.tolist() == wanted
    assert found.inodes.dtype == np.uint32
    # A group of the whole has what each of them reads while the longest reads its own.
    assert found.group_start.tolist() == [
        sum(min(cut, len(order)) for order in orders) for cut in [0, *cuts, len(longest)]
    ]
    assert (found.snapshot_id, found.snapshot_path) == ("1-a", "/s")


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_of_equal_orders_each_has_every_nth_file(ranks: int) -> None:
    orders = [list(range(100 * rank, 100 * rank + 20)) for rank in range(ranks)]
    found = interleaved([plan(order, [0, 10, 20]) for order in orders])
    for rank, order in enumerate(orders):
        assert found.inodes[rank::ranks].tolist() == order
    assert found.group_start.tolist() == [0, 10 * ranks, 20 * ranks]

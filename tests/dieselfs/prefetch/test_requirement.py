import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.errors import PlanTooLarge
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.requirement import FETCHES, MemoryNeed, require_room_for
from dieselfs.shuffle.group_memory import UNDER_WAY
from dieselfs.shuffle.order import ShuffledOrder, ShuffleParameters, shuffle_order
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot

MIB = 1 << 20


def refusal(
    snapshot: MadeSnapshot, order: ShuffledOrder, memory_bytes: int, readers: int = 1
) -> PlanTooLarge | None:
    uses = ChunkUses.of(snapshot.as_snapshot(), order.inodes)
    try:
        MemoryNeed.of(uses, order.group_start).require(memory_bytes, readers)
    except PlanTooLarge as error:
        return error
    return None


def test_the_largest_group_and_two_chunks_under_way_must_fit() -> None:
    snapshot = MadeSnapshot.even(100, files=4, file_bytes=MIB)
    order = shuffle_order(snapshot.chunk_first_inode, 1, 0, group_size=10)
    assert refusal(snapshot, order, (10 + UNDER_WAY) * 4 * MIB) is None
    error = refusal(snapshot, order, (10 + UNDER_WAY) * 4 * MIB - 1)
    assert error is not None
    assert "needs 48 MiB" in str(error)
    assert "the budget is 47 MiB" in str(error)
    assert error.hint == "raise the budget to 48 MiB, or use a group size of 9"


def test_a_window_holds_two_groups_and_all_fetches_but_no_more_than_the_order() -> None:
    def window_chunks(chunk_count: int) -> float:
        snapshot = MadeSnapshot.even(chunk_count, files=4, file_bytes=MIB)
        order = shuffle_order(snapshot.chunk_first_inode, 1, 0, group_size=10)
        uses = ChunkUses.of(snapshot.as_snapshot(), order.inodes)
        return MemoryNeed.of(uses, order.group_start).window_bytes / (4 * MIB)

    assert window_chunks(100) == 10 + 10 + FETCHES
    assert window_chunks(28) == 28
    assert window_chunks(11) == 11


def test_a_dataset_that_fits_as_a_whole_needs_no_more() -> None:
    snapshot = MadeSnapshot.even(10, files=4, file_bytes=MIB)
    order = shuffle_order(snapshot.chunk_first_inode, 1, 0, group_size=10)
    assert refusal(snapshot, order, 40 * MIB) is None
    assert refusal(snapshot, order, 40 * MIB - 1) is not None


def test_where_no_group_fits_it_says_what_one_chunk_needs() -> None:
    snapshot = MadeSnapshot.even(10, files=1, file_bytes=4 * MIB)
    order = shuffle_order(snapshot.chunk_first_inode, 1, 0, group_size=5)
    error = refusal(snapshot, order, 11 * MIB)
    assert error is not None
    assert error.hint == "raise the budget to 28 MiB; a group of one chunk needs 12 MiB"


def test_where_all_chunks_are_needed_it_says_no_other_size() -> None:
    snapshot = MadeSnapshot.even(1, files=1, file_bytes=4 * MIB)
    error = refusal(snapshot, shuffle_order(snapshot.chunk_first_inode, 1, 0, 1), MIB)
    assert error is not None
    assert (
        str(error) == "this order needs 4 MiB of memory, for all of its chunks; the budget is 1 MiB"
    )
    assert error.hint == "raise the budget to 4 MiB"


def test_several_readers_share_it() -> None:
    snapshot = MadeSnapshot.even(100, files=4, file_bytes=MIB)
    order = shuffle_order(snapshot.chunk_first_inode, 1, 0, 10, rank=1, world_size=2)
    assert refusal(snapshot, order, 2 * 48 * MIB, readers=2) is None
    error = refusal(snapshot, order, 60 * MIB, readers=2)
    assert error is not None
    assert "the budget is 60 MiB for 2 readers" in str(error)
    assert error.hint == "raise the budget to 96 MiB, or use a group size of 5"


def test_an_order_that_needs_no_chunk_needs_nothing() -> None:
    snapshot = MadeSnapshot([[0, 0], [MAX_WHOLE_BYTES + 1]])
    order = shuffle_order(snapshot.chunk_first_inode, 1, 0, 2)
    assert refusal(snapshot, order, 0) is None
    nothing = ChunkUses.of(snapshot.as_snapshot(), np.empty(0, np.uint32))
    MemoryNeed.of(nothing, np.array([0])).require(0)


def test_large_files_need_no_memory_of_their_own() -> None:
    small = [[MIB] * 4] * 10
    snapshot, mixed = MadeSnapshot(small), MadeSnapshot([*small, [64 * MIB], [64 * MIB]])
    for each in (snapshot, mixed):
        order = shuffle_order(each.chunk_first_inode, 1, 0, 12)
        assert refusal(each, order, 40 * MIB) is None
        assert refusal(each, order, 39 * MIB) is not None


def test_parameters_select_the_order() -> None:
    snapshot = MadeSnapshot.even(100, files=4, file_bytes=MIB)
    require_room_for(snapshot.as_snapshot(), ShuffleParameters(group_size=10), 48 * MIB)
    with pytest.raises(PlanTooLarge):
        require_room_for(snapshot.as_snapshot(), ShuffleParameters(group_size=11), 48 * MIB)


sizes = st.lists(st.integers(0, 40_000), min_size=1, max_size=12)
datasets = st.builds(
    MadeSnapshot,
    st.lists(st.one_of(sizes, sizes, st.just([MAX_WHOLE_BYTES + 5])), min_size=1, max_size=40),
    st.lists(st.integers(0, 10_000), max_size=1),
)


@given(
    datasets,
    st.integers(1, 50),
    st.integers(0, 2_000_000),
    st.integers(1, 3),
    st.sampled_from(["pad", "drop"]),
    st.integers(1, 3),
)
def test_what_it_suggests_does_fit(
    snapshot: MadeSnapshot,
    group_size: int,
    memory_bytes: int,
    world_size: int,
    padding: str,
    readers: int,
) -> None:
    for rank in range(world_size):

        def ordered(size: int, rank: int = rank) -> ShuffledOrder:
            return shuffle_order(snapshot.chunk_first_inode, 3, 1, size, rank, world_size, padding)

        error = refusal(snapshot, ordered(group_size), memory_bytes, readers)
        if error is None:
            continue
        assert error.hint is not None
        needed = re.search(r"needs (\d+) MiB of memory", str(error))
        wanted = re.match(r"raise the budget to (\d+) MiB", error.hint)
        assert needed is not None
        assert wanted is not None
        assert refusal(snapshot, ordered(group_size), int(wanted[1]) * MIB, readers) is None
        assert readers > 1 or needed[1] == wanted[1]
        suggested = re.search(r"a group size of (\d+)", error.hint)
        if suggested is not None:
            assert 0 < int(suggested[1]) < group_size
            assert refusal(snapshot, ordered(int(suggested[1])), memory_bytes, readers) is None
            continue
        one = re.search(r"a group of one chunk needs (\d+) MiB", error.hint)
        if one is None:
            continue
        assert int(one[1]) <= int(wanted[1])
        assert refusal(snapshot, ordered(1), int(one[1]) * MIB, readers) is None

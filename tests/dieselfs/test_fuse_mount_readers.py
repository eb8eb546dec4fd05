import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.fuse.mount_readers import SENTINEL_BYTES, SENTINEL_FILES, sentinel_positions
from dieselfs.shuffle import shuffle_order
from tests.dieselfs.plan.made_snapshot import MadeSnapshot
from tests.dieselfs.simulated_mount import SimulatedMount

FILE_BYTES = 25_000
CHUNK_FILES = 40
CHUNK_BYTES = FILE_BYTES * CHUNK_FILES
SNAPSHOT = MadeSnapshot.even(50, CHUNK_FILES, FILE_BYTES)


def shuffled(epoch: int, group_size: int = 4, snapshot: MadeSnapshot = SNAPSHOT) -> list[int]:
    order = shuffle_order(snapshot.chunk_first_inode, 7, epoch, group_size)
    return [int(inode) for inode in order.inodes]


@pytest.fixture
def mount() -> Iterator[Callable[..., SimulatedMount]]:
    made: list[SimulatedMount] = []
    threads = threading.active_count()

    def make(
        budget_chunks: int, inodes: Sequence[int], snapshot: MadeSnapshot = SNAPSHOT
    ) -> SimulatedMount:
        made.append(SimulatedMount(snapshot, budget_chunks * CHUNK_BYTES, inodes))
        made[-1].settle()
        return made[-1]

    yield make
    for mount in made:
        mount.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.001)


Make = Callable[..., SimulatedMount]


@given(
    st.lists(
        st.sampled_from([0, 1, 1000, 100_000, SENTINEL_BYTES, 5 * SENTINEL_BYTES]), max_size=400
    )
)
def test_sentinels_are_spaced_by_files_and_bytes(lengths: list[int]) -> None:
    found = sentinel_positions(np.array(lengths, np.uint64)).tolist()
    filled = [at for at, length in enumerate(lengths) if length]
    assert set(found) <= set(filled)
    assert found == sorted(set(found))
    assert found[-1:] == filled[-1:]
    begin = -1
    for position in found:  # one in each stretch, so at most two stretches apart
        between = [at for at in filled if begin < at <= position]
        assert len(between) < 2 * SENTINEL_FILES
        assert sum(sorted(lengths[at] for at in between)[:-2]) < 2 * SENTINEL_BYTES
        begin = position


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch", [16, 32, 64, 100])
def test_every_reader_has_sentinels_in_its_batches(readers: int, batch: int) -> None:
    found = sentinel_positions(np.full(10_000, 1000))
    assert len(found) == pytest.approx(10_000 / SENTINEL_FILES, abs=1)
    whose = (found // batch) % readers
    for reader in range(readers):
        gaps = np.diff(np.flatnonzero(whose == reader), prepend=-1)
        assert gaps.max() <= 6 * readers


@pytest.mark.parametrize("group_size", [1, 4])
def test_one_reader_finds_everything_and_nothing_is_dropped_before_it_was_read(
    mount: Make, group_size: int
) -> None:
    order = shuffled(0, group_size)
    mounted = mount(8, order)
    for epoch in range(3):
        mounted.read_in_batches(order, readers=1, batch=32, seed=epoch)
        mounted.settle()
        assert mounted.pages.dropped_unread == []
        assert mounted.fast_path.reads_of_stored == []
        assert mounted.fast_path.reads_past_memory == []
        assert set(mounted.fast_path.reads) <= mounted.fast_path.is_sentinel, "and no other READ"
        assert mounted.follower.statistics().position == len(order)
        assert mounted.ticks[-1] == len(order)
        assert mounted.follower.statistics().skipped == 0
        order = shuffled(epoch + 1, group_size)
        mounted.fast_path.reads.clear()
        mounted.go_on(order)
    # What is stored by halves, a few sentinels' worth, and what is dropped at once.
    assert mounted.most_bytes <= mounted.budget_bytes + CHUNK_BYTES


@pytest.mark.parametrize("readers", [2, 3, 4])
@pytest.mark.parametrize("batch", [10, 32])
def test_readers_side_by_side_lose_nothing(mount: Make, readers: int, batch: int) -> None:
    order = shuffled(0)
    mounted = mount(20, order)
    for epoch in range(2):
        mounted.read_in_batches(order, readers, batch, seed=epoch)
        mounted.settle()
        assert mounted.pages.dropped_unread == []
        # Those that come to the next group while the others are in the one before.
        assert len(mounted.fast_path.reads_past_memory) <= len(order) // 100
        assert mounted.fast_path.reads_of_stored == []
        order = shuffled(epoch + 1)
        mounted.go_on(order)
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES


def test_each_chunk_is_fetched_once_an_epoch_and_what_memory_has_left_is_used_again(
    mount: Make,
) -> None:
    order = shuffled(0)
    mounted = mount(20, order)
    following = shuffled(1)
    mounted.follower.follow_on(mounted.order(following))
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    first = len(mounted.memory.fetched)
    assert set(mounted.memory.fetched) == set(range(50))
    assert first <= 50 + 20
    assert len(set(mounted.memory.fetched[:50])) == 50, "each once, before the next epoch's"


def test_a_chunk_that_node_memory_holds_for_the_readers_is_not_evicted_for_one_that_was_stored(
    mount: Make,
) -> None:
    """Stored bytes lessen node memory's budget: what goes is what was stored, not what is to be."""
    mounted = mount(7, shuffled(0))
    mounted.read_in_batches(shuffled(0), 1, 16, seed=0, steps_every=4)
    mounted.settle()
    assert len(mounted.memory.fetched) == 50
    assert sorted(mounted.fast_path.stored_order) == list(range(50))
    statistics = mounted.follower.statistics()
    assert statistics.late <= 2
    assert statistics.no_room <= 5


def test_a_dataset_that_fits_is_kept(mount: Make) -> None:
    order = shuffled(0)
    mounted = mount(50, order)
    mounted.settle()
    mounted.read_in_batches(order, 2, 32, seed=0)
    mounted.settle()
    assert len(mounted.memory.fetched) == 50
    assert mounted.readers.outside_bytes() == 50 * CHUNK_BYTES
    mounted.fast_path.reads.clear()
    for epoch in range(1, 3):
        mounted.go_on(shuffled(epoch))
        assert not mounted.fast_path.is_set, "nothing is left to do"
        mounted.read_in_batches(shuffled(epoch), 2, 32, seed=epoch)
        mounted.settle()
    assert mounted.fast_path.reads == []
    assert len(mounted.memory.fetched) == 50
    assert mounted.pages.dropped == []
    assert mounted.most_bytes <= mounted.budget_bytes
    assert mounted.readers.outside_bytes() == 50 * CHUNK_BYTES
    assert mounted.memory.budget_bytes <= CHUNK_BYTES


def test_of_a_dataset_that_fits_what_failed_is_fetched_in_the_next_epoch(mount: Make) -> None:
    order = shuffled(0)
    mounted = mount(60, [])
    mounted.memory.failing = {3, 4}
    mounted.go_on(order)
    mounted.settle()
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    assert mounted.follower.statistics().skipped == 2
    assert len(mounted.memory.fetched) == 48
    mounted.memory.failing = set()
    mounted.fast_path.pages -= set(range(3 * 40, 5 * 40))  # the kernel was short of memory
    following = shuffled(1)
    mounted.fast_path.reads.clear()
    mounted.go_on(following)
    assert mounted.fast_path.is_set
    assert sorted(mounted.memory.fetched[48:]) == [3, 4]
    mounted.read_in_batches(following, 1, 32, seed=1)
    mounted.settle()
    needed = [at for at, inode in enumerate(following) if inode // CHUNK_FILES in (3, 4)]
    assert mounted.fast_path.low > needed[-1], "the clock needs no file that is kept"
    assert {inode // CHUNK_FILES for inode in mounted.fast_path.reads} <= {3, 4}
    mounted.go_on(shuffled(2))
    assert not mounted.fast_path.is_set


def test_files_that_the_kernel_does_not_know_are_looked_up_once(mount: Make) -> None:
    order = shuffled(0)
    mounted = mount(20, [])
    mounted.fast_path.unknown = set(range(2000))
    mounted.go_on(order)
    mounted.settle()
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    assert sorted(mounted.pages.looked_up) == list(range(2000)), "each once"
    assert mounted.fast_path.reads_of_stored == []
    late = [
        inode for inode in mounted.fast_path.reads if inode not in mounted.fast_path.is_sentinel
    ]
    assert late == []


def test_what_cannot_be_stored_even_then_is_left_to_its_readers(mount: Make) -> None:
    order = shuffled(0)
    mounted = mount(20, [])
    mounted.pages.look_up = lambda paths: False  # type: ignore[method-assign]
    mounted.fast_path.unknown = {5, 45}
    mounted.go_on(order)
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    assert (
        set(mounted.fast_path.reads) - mounted.fast_path.is_sentinel
        == {5, 45} - mounted.fast_path.is_sentinel
    )
    assert mounted.follower.statistics().position == 2000


LARGE = 600_000
WITH_LARGE = MadeSnapshot([[FILE_BYTES] * 20 + [LARGE] * (chunk % 3 == 0) for chunk in range(60)])


def test_large_files_keep_their_chunk_until_they_have_been_passed(mount: Make) -> None:
    order = shuffled(0, 4, WITH_LARGE)
    mounted = mount(14, order, WITH_LARGE)
    mounted.read_in_batches(order, 1, 16, seed=0, steps_every=4)
    mounted.settle()
    assert mounted.fast_path.reads_past_memory == []
    large = {inode for inode in order if WITH_LARGE.columns.length[inode] == LARGE}
    assert set(mounted.fast_path.reads) <= large | mounted.fast_path.is_sentinel
    assert mounted.pages.dropped_unread == []
    assert len(mounted.memory.fetched) == 60


def test_files_in_large_chunks_and_empty_ones_are_passed_by(mount: Make) -> None:
    snapshot = MadeSnapshot(
        [[FILE_BYTES] * 30 + [0] * 5 if chunk % 5 else [MAX_WHOLE_BYTES + 1] for chunk in range(40)]
    )
    order = shuffled(0, 4, snapshot)
    mounted = mount(12, order, snapshot)
    mounted.read_in_batches(order, 1, 16, seed=0)
    mounted.settle()
    assert mounted.follower.statistics().position == len(order)
    assert sorted(mounted.memory.fetched) == [chunk for chunk in range(40) if chunk % 5]
    assert mounted.pages.dropped_unread == []
    past = {int(snapshot.columns.chunk[inode]) for inode in mounted.fast_path.reads_past_memory}
    assert past <= {chunk for chunk in range(40) if not chunk % 5}


def test_readers_that_skip_files_are_followed_at_a_distance(mount: Make) -> None:
    """A batch in five is left out, with its sentinels."""
    order = shuffled(0)
    mounted = mount(24, order)
    batches = [order[at : at + 64] for at in range(0, len(order), 64)]
    taken = [inode for number, batch in enumerate(batches) if number % 5 != 2 for inode in batch]
    mounted.read_in_batches(taken, 1, 64, seed=0)
    mounted.settle()
    assert len(mounted.fast_path.reads_past_memory) <= len(taken) // 100
    left = mounted.snapshot.file_count - mounted.follower.statistics().position
    assert left * FILE_BYTES <= mounted.budget_bytes // 2 + 64 * FILE_BYTES
    assert not set(mounted.pages.dropped_unread) & set(taken)
    assert mounted.most_bytes <= mounted.budget_bytes + CHUNK_BYTES


def test_a_stray_read_far_ahead_moves_no_clock(mount: Make) -> None:
    order = shuffled(0)
    mounted = mount(12, order)
    mounted.read_in_batches(order[:320], 1, 32, seed=0)
    stray = next(inode for inode in order[::-1] if inode not in mounted.fast_path.is_sentinel)
    mounted.read(stray)
    mounted.settle()
    assert mounted.follower.statistics().position <= 320
    mounted.read_in_batches(order[320:], 1, 32, seed=1)
    mounted.settle()
    assert mounted.pages.dropped_unread == []
    assert mounted.fast_path.reads_past_memory == [stray]


def test_what_an_order_leaves_is_dropped_before_the_next_one_stores(mount: Make) -> None:
    order, following = shuffled(0), shuffled(1)
    mounted = mount(12, order)
    mounted.read_in_batches(order[:500], 1, 32, seed=0)
    mounted.settle()
    dropped = len(mounted.pages.dropped)
    cached = set(mounted.fast_path.pages)
    mounted.go_on(following)
    late = mounted.pages.dropped[dropped:]
    assert set(late) >= cached, "all of it"
    assert len(late) <= len(cached) + 20, "and nothing but sentinels beside it"
    mounted.fast_path.reads.clear()
    mounted.read_in_batches(following, 1, 32, seed=1)
    mounted.settle()
    assert set(mounted.fast_path.reads) <= mounted.fast_path.is_sentinel
    assert mounted.fast_path.reads_past_memory == []
    assert mounted.most_bytes <= mounted.budget_bytes + CHUNK_BYTES


def test_bytes_that_were_read_past_memory_are_counted(mount: Make) -> None:
    """Chunks that cannot be fetched ahead come into the page cache by READs, and leave it all the same."""
    order = shuffled(0)
    mounted = mount(12, [])
    mounted.memory.failing = set(range(0, 50, 3))
    for epoch in range(2):
        mounted.go_on(shuffled(epoch))
        mounted.read_in_batches(shuffled(epoch), 1, 32, seed=epoch)
        mounted.settle()
        assert abs(mounted.readers.outside_bytes() - mounted.fast_path.bytes) <= 8 * CHUNK_BYTES
        assert mounted.readers.outside_bytes() >= 0
    assert len(order) == 2000
    assert mounted.most_bytes <= mounted.budget_bytes + 5 * CHUNK_BYTES


def test_it_can_be_closed_twice_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    mounted = SimulatedMount(SNAPSHOT, 10 * CHUNK_BYTES, shuffled(0))
    mounted.settle()
    mounted.close_twice = True  # type: ignore[attr-defined]
    mounted.readers.close()
    mounted.close()
    assert mounted.fast_path.cleared == 1
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_page_process_that_fails_does_not_stop_it(
    mount: Make, caplog: pytest.LogCaptureFixture
) -> None:
    order = shuffled(0)
    mounted = mount(12, order)

    def fail(paths: bytes) -> bool:
        raise OSError("no process")

    mounted.pages.drop = fail  # type: ignore[method-assign]
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    assert mounted.follower.statistics().position == len(order)
    assert "the page cache is not tended: no process" in caplog.text


def test_chance_readers(mount: Make) -> None:
    """Epochs that end anywhere, readers of any number."""
    chance = random.Random(11)
    order = shuffled(0)
    mounted = mount(24, order)
    for epoch in range(1, 8):
        part = order[: chance.randrange(len(order))]
        mounted.read_in_batches(part, chance.randrange(1, 4), chance.choice([8, 32]), seed=epoch)
        mounted.step()
        assert not set(mounted.pages.dropped_unread) & set(part)
        assert len(mounted.fast_path.reads_past_memory) <= len(order) // 100
        mounted.fast_path.reads_past_memory.clear()
        order = shuffled(epoch)
        mounted.go_on(order)
        mounted.pages.dropped_unread.clear()
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES

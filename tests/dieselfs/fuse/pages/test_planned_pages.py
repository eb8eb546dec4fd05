import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.prefetch.progress_probes import PROBE_BYTES, PROBE_FILES, probe_positions
from dieselfs.shuffle.order import shuffle_order
from tests.dieselfs.fuse.simulated_mount import NamedSnapshot, SimulatedMount

FILE_BYTES = 25_000
CHUNK_FILES = 40
CHUNK_BYTES = FILE_BYTES * CHUNK_FILES
SNAPSHOT = NamedSnapshot([[FILE_BYTES] * CHUNK_FILES] * 50)


def shuffled(epoch: int, group_size: int = 4, snapshot: NamedSnapshot = SNAPSHOT) -> list[int]:
    order = shuffle_order(snapshot.chunk_first_inode, 7, epoch, group_size)
    return [int(inode) for inode in order.inodes]


@pytest.fixture(params=["stores", "files", "ranges"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def mount(kind: str) -> Iterator[Callable[..., SimulatedMount]]:
    made: list[SimulatedMount] = []

    def make(
        budget_chunks: int,
        inodes: Sequence[int],
        snapshot: NamedSnapshot = SNAPSHOT,
        watches: int = 1 << 30,
    ) -> SimulatedMount:
        budget = budget_chunks * CHUNK_BYTES
        made.append(SimulatedMount(snapshot, budget, inodes, kind, watches))
        made[-1].settle()
        return made[-1]

    yield make
    for mount in made:
        mount.close()


Make = Callable[..., SimulatedMount]


def more(kind: str, chunks: int) -> int:
    """A budget for as much: copies that a filler stages need room beside those of the readers."""
    return chunks + 20 if kind == "ranges" else chunks


def staged_fits(kind: str, chunks: int) -> int:
    """A budget in which so many chunks fit as a whole."""
    return chunks + 16 if kind == "ranges" else chunks


# Probes


@given(st.lists(st.sampled_from([0, 1, 1000, 100_000, PROBE_BYTES, 5 * PROBE_BYTES]), max_size=400))
def test_probes_are_spaced_by_files_and_bytes(lengths: list[int]) -> None:
    found = probe_positions(np.array(lengths, np.uint64)).tolist()
    filled = [at for at, length in enumerate(lengths) if length]
    assert set(found) <= set(filled)
    assert found == sorted(set(found))
    assert found[-1:] == filled[-1:]
    begin = -1
    for position in found:  # one in each stretch, so at most two stretches apart
        between = [at for at in filled if begin < at <= position]
        assert len(between) < 2 * PROBE_FILES
        assert sum(sorted(lengths[at] for at in between)[:-2]) < 2 * PROBE_BYTES
        begin = position


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch", [16, 32, 64, 100])
def test_every_reader_has_probes_in_its_batches(readers: int, batch: int) -> None:
    found = probe_positions(np.full(10_000, 1000))
    assert len(found) == pytest.approx(10_000 / PROBE_FILES, abs=1)
    whose = (found // batch) % readers
    for reader in range(readers):
        gaps = np.diff(np.flatnonzero(whose == reader), prepend=-1)
        assert gaps.max() <= 6 * readers


# Readers


@pytest.mark.parametrize("group_size", [1, 4])
def test_one_reader_finds_everything_and_nothing_is_dropped_before_it_was_read(
    mount: Make, kind: str, group_size: int
) -> None:
    order = shuffled(0, group_size)
    mounted = mount(more(kind, 8), order)
    for epoch in range(3):
        mounted.read_in_batches(order, readers=1, batch=32, seed=epoch)
        mounted.settle()
        assert mounted.cache.dropped_unread == []
        assert mounted.cache.unstaged_unread == []
        assert mounted.cache.reads == [], "not even the probes are READ"
        assert mounted.prefetcher.statistics().position == len(order)
        assert mounted.pages.position() == len(order)
        assert mounted.prefetcher.statistics().skipped == 0
        order = shuffled(epoch + 1, group_size)
        mounted.go_on(order)
    # What is filled by halves, what a few probes are worth, and what is dropped at once.
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES


@pytest.mark.parametrize("readers", [2, 3, 4])
@pytest.mark.parametrize("batch", [10, 32])
def test_readers_side_by_side_lose_nothing(
    mount: Make, kind: str, readers: int, batch: int
) -> None:
    order = shuffled(0)
    mounted = mount(more(kind, 20), order)
    for epoch in range(2):
        mounted.read_in_batches(order, readers, batch, seed=epoch)
        mounted.settle()
        assert mounted.cache.dropped_unread == []
        assert mounted.cache.unstaged_unread == []
        # Those that come to the next group while the others are in the one before.
        assert len(mounted.cache.reads) <= len(order) // 100
        order = shuffled(epoch + 1)
        mounted.go_on(order)
    assert mounted.most_bytes <= mounted.budget_bytes + 3 * CHUNK_BYTES


def test_each_chunk_is_fetched_once_an_epoch_and_what_memory_has_left_is_used_again(
    mount: Make, kind: str
) -> None:
    order = shuffled(0)
    mounted = mount(20, order)
    following = shuffled(1)
    mounted.add(following)
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    first = len(mounted.memory.fetched)
    assert set(mounted.memory.fetched) == set(range(50))
    assert first <= 50 + 20
    assert len(set(mounted.memory.fetched[:50])) == 50, "each once, before the next epoch's"


def test_a_chunk_that_node_memory_holds_for_the_readers_is_not_evicted_for_one_that_was_filled(
    mount: Make, kind: str
) -> None:
    """Filled bytes lessen node memory's budget: what goes is what was filled, not what is to be."""
    mounted = mount(more(kind, 7), shuffled(0))
    mounted.read_in_batches(shuffled(0), 1, 16, seed=0, steps_every=4)
    mounted.settle()
    assert len(mounted.memory.fetched) == 50
    assert sorted(mounted.cache.fills) == list(range(50))
    statistics = mounted.prefetcher.statistics()
    assert statistics.late <= 2
    assert statistics.no_room <= 5


def test_a_dataset_that_fits_is_kept(mount: Make, kind: str) -> None:
    order = shuffled(0)
    mounted = mount(staged_fits(kind, 50), order)
    mounted.settle()
    mounted.read_in_batches(order, 2, 32, seed=0)
    mounted.settle()
    assert len(mounted.memory.fetched) == 50
    assert len(mounted.cache.pages) == 2000
    assert mounted.pages.outside_bytes() >= 50 * CHUNK_BYTES
    for epoch in range(1, 3):
        mounted.go_on(shuffled(epoch))
        mounted.read_in_batches(shuffled(epoch), 2, 32, seed=epoch)
        mounted.settle()
        assert mounted.pages.position() == 2000, "files that are cached tell the progress too"
    assert mounted.cache.reads == []
    assert len(mounted.memory.fetched) == 50
    assert mounted.cache.dropped == []
    assert mounted.cache.staged == set()
    assert mounted.most_bytes <= mounted.budget_bytes
    assert mounted.pages.outside_bytes() == 50 * CHUNK_BYTES
    assert mounted.memory.budget_bytes == mounted.budget_bytes - 50 * CHUNK_BYTES


def test_of_a_dataset_that_fits_what_failed_is_fetched_in_the_next_epoch(
    mount: Make, kind: str
) -> None:
    order = shuffled(0)
    mounted = mount(staged_fits(kind, 50), [])
    mounted.memory.failing = {3, 4}
    mounted.go_on(order)
    mounted.settle()
    mounted.read_in_batches(order, 1, 32, seed=0)
    mounted.settle()
    assert mounted.prefetcher.statistics().skipped == 2
    assert len(mounted.memory.fetched) == 48
    mounted.memory.failing = set()
    mounted.cache.pages -= set(range(3 * 40, 5 * 40))  # the kernel was short of memory
    mounted.cache.staged -= set(range(3 * 40, 5 * 40))
    following = shuffled(1)
    mounted.cache.reads.clear()
    mounted.go_on(following)
    assert sorted(mounted.memory.fetched[48:]) == [3, 4]
    mounted.read_in_batches(following, 1, 32, seed=1)
    mounted.settle()
    assert mounted.cache.reads == []
    mounted.go_on(shuffled(2))
    assert len(mounted.memory.fetched) == 50


def test_what_an_epoch_that_fits_left_unread_is_filled_in_the_next_one(
    mount: Make, kind: str
) -> None:
    mounted = mount(staged_fits(kind, 50) + 1, shuffled(0))
    mounted.read_in_batches(shuffled(0)[:700], 1, 32, seed=0)
    mounted.go_on(shuffled(1))
    mounted.read_in_batches(shuffled(1), 1, 32, seed=1)
    mounted.settle()
    assert mounted.cache.reads == []
    assert mounted.cache.dropped == []
    assert mounted.most_bytes <= mounted.budget_bytes


def test_files_that_cannot_be_filled_are_left_to_their_readers(mount: Make, kind: str) -> None:
    mounted = mount(more(kind, 20), [])
    mounted.cache.failing = {5, 45}
    mounted.go_on(shuffled(0))
    mounted.read_in_batches(shuffled(0), 1, 32, seed=0)
    mounted.settle()
    assert sorted(mounted.cache.reads) == [5, 45]
    assert mounted.cache.reads_past_memory == [], "node memory keeps their chunks for them"
    assert mounted.prefetcher.statistics().position == 2000


LARGE = 600_000
WITH_LARGE = NamedSnapshot([[FILE_BYTES] * 20 + [LARGE] * (chunk % 3 == 0) for chunk in range(60)])


def test_large_files_keep_their_chunk_until_they_have_been_passed(mount: Make, kind: str) -> None:
    order = shuffled(0, 4, WITH_LARGE)
    mounted = mount(more(kind, 14), order, WITH_LARGE)
    mounted.read_in_batches(order, 1, 16, seed=0, steps_every=4)
    mounted.settle()
    assert mounted.cache.reads_past_memory == []
    large = {inode for inode in order if WITH_LARGE.columns.length[inode] == LARGE}
    assert set(mounted.cache.reads) == large
    assert mounted.cache.dropped_unread == []
    assert len(mounted.memory.fetched) == 60


def test_chunks_of_one_large_file_are_fetched_before_their_reader_and_released(
    mount: Make, kind: str
) -> None:
    large = MAX_WHOLE_BYTES + 1
    snapshot = NamedSnapshot([[FILE_BYTES] * 30 if chunk % 3 else [large] for chunk in range(40)])
    order = shuffled(0, 4, snapshot)
    mounted = mount(more(kind, 12) + 5 * large // CHUNK_BYTES, order, snapshot)
    mounted.read_in_batches(order, 1, 1, seed=0)
    mounted.settle()
    assert sorted(mounted.memory.fetched) == list(range(40)), "once each"
    assert mounted.cache.reads_past_memory == []
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES


def test_files_in_large_chunks_and_empty_ones_are_passed_by(mount: Make, kind: str) -> None:
    snapshot = NamedSnapshot(
        [[FILE_BYTES] * 30 + [0] * 5 if chunk % 5 else [MAX_WHOLE_BYTES, 1] for chunk in range(40)]
    )
    order = shuffled(0, 4, snapshot)
    mounted = mount(more(kind, 12), order, snapshot)
    mounted.read_in_batches(order, 1, 16, seed=0)
    mounted.settle()
    assert mounted.prefetcher.statistics().position == len(order)
    assert sorted(mounted.memory.fetched) == [chunk for chunk in range(40) if chunk % 5]
    assert mounted.cache.dropped_unread == []
    past = {int(snapshot.columns.chunk[inode]) for inode in mounted.cache.reads_past_memory}
    assert past <= {chunk for chunk in range(40) if not chunk % 5}


def test_readers_that_skip_files_are_followed_at_a_distance(mount: Make, kind: str) -> None:
    """A batch in five is left out, with its probes."""
    order = shuffled(0)
    mounted = mount(24, order)
    batches = [order[at : at + 64] for at in range(0, len(order), 64)]
    taken = [inode for number, batch in enumerate(batches) if number % 5 != 2 for inode in batch]
    mounted.read_in_batches(taken, 1, 64, seed=0)
    mounted.settle()
    assert len(mounted.cache.reads) <= len(taken) // 100
    left = mounted.snapshot.file_count - mounted.prefetcher.statistics().position
    assert left * FILE_BYTES <= mounted.budget_bytes // 2 + 64 * FILE_BYTES
    assert not set(mounted.cache.dropped_unread) & set(taken)
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES


def test_a_stray_read_far_ahead_moves_no_clock(mount: Make, kind: str) -> None:
    order = shuffled(0)
    mounted = mount(more(kind, 12), order)
    mounted.read_in_batches(order[:320], 1, 32, seed=0)
    strays = [order[-1], *(inode for inode in mounted.probes[-3:-1])]
    for stray in strays:
        mounted.read(stray)
    mounted.settle()
    assert mounted.prefetcher.statistics().position <= 320
    mounted.cache.was_read -= set(strays)
    mounted.read_in_batches(order[320:], 1, 32, seed=1)
    mounted.settle()
    assert mounted.cache.dropped_unread == []
    assert set(mounted.cache.reads) <= set(strays)


def test_what_an_order_leaves_is_dropped_before_the_next_one_fills(mount: Make, kind: str) -> None:
    order, following = shuffled(0), shuffled(1)
    mounted = mount(more(kind, 12), order)
    mounted.read_in_batches(order[:500], 1, 32, seed=0)
    mounted.settle()
    dropped = len(mounted.cache.dropped)
    cached = mounted.cache.pages | mounted.cache.staged
    mounted.go_on(following)
    late = mounted.cache.dropped[dropped:]
    assert set(late) >= cached, "all of it"
    mounted.cache.reads.clear()
    mounted.read_in_batches(following, 1, 32, seed=1)
    mounted.settle()
    assert mounted.cache.reads == []
    assert mounted.most_bytes <= mounted.budget_bytes + 2 * CHUNK_BYTES


def test_the_next_order_begins_with_room_for_the_copies_of_its_readers(
    mount: Make, kind: str
) -> None:
    """Else its first chunks take the room of copies that readers are about to make."""
    mounted = mount(more(kind, 12), shuffled(0))
    mounted.add(shuffled(1))
    mounted.read_in_batches(shuffled(0), 1, 32, seed=0)
    for _ in range(2):  # the chunks that came ahead are filled
        mounted.settle()
        assert mounted.prefetcher.statistics().window_bytes <= mounted.budget_bytes + CHUNK_BYTES


def test_bytes_that_were_read_past_memory_are_counted(mount: Make, kind: str) -> None:
    """Chunks that cannot be fetched ahead come into the page cache by READs, and leave it all the
    same."""
    mounted = mount(more(kind, 12), [])
    mounted.memory.failing = set(range(0, 50, 3))
    for epoch in range(2):
        mounted.go_on(shuffled(epoch))
        mounted.read_in_batches(shuffled(epoch), 1, 32, seed=epoch)
        mounted.settle()
        assert abs(mounted.pages.outside_bytes() - mounted.cache.bytes) <= 9 * CHUNK_BYTES
        assert mounted.pages.outside_bytes() >= 0
    assert mounted.most_bytes <= mounted.budget_bytes + 5 * CHUNK_BYTES


def test_a_chunk_is_fetched_and_filled_again_whose_pages_the_kernel_has_dropped(
    mount: Make, kind: str
) -> None:
    order = shuffled(0, group_size=1)
    mounted = mount(more(kind, 8), order)
    chunks = list(dict.fromkeys(inode // CHUNK_FILES for inode in order))
    lost = chunks[3]
    for inode in order[: CHUNK_FILES * 2]:
        mounted.read(inode)
        mounted.step()
    assert lost in mounted.cache.fills
    assert lost not in mounted.cache.in_memory
    mounted.cache.lose(lost)
    for inode in order[CHUNK_FILES * 2 :]:
        mounted.read(inode)
        mounted.step()
    of_lost = [inode for inode in mounted.cache.reads if inode // CHUNK_FILES == lost]
    assert len(of_lost) == 2, "the rest comes from its second fill"
    assert mounted.cache.reads == of_lost
    assert mounted.memory.fetched.count(lost) == 2
    assert len(mounted.memory.fetched) == len(chunks) + 1
    assert mounted.pages.statistics().lost_chunks == 1
    assert mounted.cache.dropped_unread == []
    # As elsewhere, and the copies of the chunk that was lost.
    assert mounted.most_bytes <= mounted.budget_bytes + 3 * CHUNK_BYTES


def test_pages_that_were_lost_behind_the_readers_are_not_fetched_again(
    mount: Make, kind: str
) -> None:
    order = shuffled(0, group_size=1)
    mounted = mount(staged_fits(kind, 60), order)  # so that nothing is dropped behind them
    for inode in order[: CHUNK_FILES * 20]:
        mounted.read(inode)
        mounted.step()
    passed = order[0] // CHUNK_FILES
    mounted.cache.lose(passed)
    for inode in order[:CHUNK_FILES]:
        mounted.read(inode)
        mounted.step()
    assert mounted.pages.statistics().lost_chunks == 0
    assert mounted.memory.fetched.count(passed) == 1


def test_probes_are_watched_only_shortly_before_their_turn(kind: str) -> None:
    snapshot = NamedSnapshot([[100] * 1000] * 200)
    order = list(range(snapshot.file_count))
    mounted = SimulatedMount(snapshot, 20 * 100_000, order, kind)
    try:
        mounted.settle()
        assert len(mounted.probes) > 3000
        assert len(mounted.events) == 1024
        mounted.read_in_batches(order[:10_000], 1, 32, seed=0, steps_every=64)
        assert mounted.events.most <= 1024
        assert mounted.pages.position() >= 9_900
    finally:
        mounted.close()


def test_with_few_watches_those_that_come_first_are_used(mount: Make, kind: str) -> None:
    order = shuffled(0)
    mounted = mount(more(kind, 20), order, watches=8)
    mounted.read_in_batches(order, 1, 16, seed=0)
    mounted.settle()
    assert mounted.cache.dropped_unread == []
    assert mounted.cache.reads == []
    assert mounted.pages.position() == len(order)


def test_probes_that_cannot_be_watched_are_left_out(mount: Make, kind: str) -> None:
    mounted = mount(more(kind, 20), [])
    mounted.events.unwatchable = set(range(0, 2000, 2))
    order = shuffled(0)
    mounted.go_on(order)
    mounted.read_in_batches(order, 1, 16, seed=0)
    mounted.settle()
    assert mounted.cache.dropped_unread == []
    assert len(mounted.cache.reads) <= 40
    assert mounted.pages.statistics().unwatched_files > 10


def test_it_can_be_closed_twice_and_drops_what_it_has_staged(kind: str) -> None:
    mounted = SimulatedMount(SNAPSHOT, 25 * CHUNK_BYTES, shuffled(0), kind)
    mounted.settle()
    mounted.pages.close()
    mounted.close()
    assert mounted.cache.closed == 1
    assert mounted.cache.staged == set()


def test_chance_readers(mount: Make, kind: str) -> None:
    """Epochs that end anywhere, readers of any number."""
    chance = random.Random(11)
    order = shuffled(0)
    mounted = mount(more(kind, 24), order)
    for epoch in range(1, 8):
        part = order[: chance.randrange(len(order))]
        mounted.read_in_batches(part, chance.randrange(1, 4), chance.choice([8, 32]), seed=epoch)
        mounted.step()
        assert not set(mounted.cache.dropped_unread) & set(part)
        assert not set(mounted.cache.unstaged_unread) & set(part)
        assert len(mounted.cache.reads) <= len(order) // 100
        mounted.cache.reads.clear()
        order = shuffled(epoch)
        mounted.go_on(order)
        mounted.cache.dropped_unread.clear()
        mounted.cache.unstaged_unread.clear()
    assert mounted.most_bytes <= mounted.budget_bytes + 3 * CHUNK_BYTES

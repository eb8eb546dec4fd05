import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from chunkstore.errors import Unavailable
from dieselfs.errors import CacheFull, MasterGone
from dieselfs.prefetch import prefetcher
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.prefetch.planner import Planner
from dieselfs.prefetch.prefetcher import Prefetcher, PrefetcherRun
from dieselfs.prefetch.window import FETCHES, PlannedOrder, PrefetchStatistics
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import (
    MadePlan,
    MovedReaders,
    ScriptedMemory,
)
from tests.eventually import PATIENCE_S, eventually, scaled_by_load

SNAPSHOT = MadeSnapshot.even(chunks=20, files=5, file_bytes=100)
CHUNK_BYTES = 500
ALL = list(range(100))


class Following:
    """A prefetcher with what is around it."""

    def __init__(self, memory: ScriptedMemory, budget_chunks: float, inodes: list[int]) -> None:
        self.memory = memory
        self.readers = MovedReaders()
        self.budget_bytes = int(budget_chunks * CHUNK_BYTES)
        self.prefetcher = Prefetcher(
            memory, lambda: self.budget_bytes, lambda snapshot: self.readers
        )
        self.plans = [MadePlan(SNAPSHOT, inodes)]
        self.prefetcher.follow(self.plans[0], PATIENCE_S)
        # When they are due is the rates' to say, and another test's.
        rates = self.run._window.rates
        rates.is_due = lambda until_use, to_fetch: True  # type: ignore[method-assign]

    @property
    def run(self) -> PrefetcherRun:
        assert self.prefetcher._run is not None
        return self.prefetcher._run

    def add_order(self, inodes: list[int]) -> None:
        self.plans.append(MadePlan(SNAPSHOT, inodes, after=self.plans[-1].id))
        self.prefetcher.follow(self.plans[-1], PATIENCE_S)

    def advance(self) -> None:
        """The reader leaves the last plan but one."""
        self.plans[-2].is_read = False
        self.run.wake()

    def wait_for_arrivals(self, *chunks: int) -> None:
        eventually(
            lambda: self.readers.arrivals and set(self.readers.arrivals[-1]) >= set(chunks),
            f"not arrived: {chunks}",
        )

    def settle(self) -> None:
        """Two looks from now everything that was known has been done. A thread that fetches may be
        late."""
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        self.readers.on_look = look
        for wanted in range(1, 4):
            self.run.wake()
            eventually(lambda wanted=wanted: looks >= wanted)


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def make(budget_chunks: float, inodes: list[int] = ALL, *, holds: bool = False) -> Following:
        made.append(Following(ScriptedMemory(holds), budget_chunks, inodes))
        return made[-1]

    threads = set(threading.enumerate())
    yield make
    for planner in made:
        planner.memory.release_all()
        planner.prefetcher.close()
    eventually(lambda: set(threading.enumerate()) <= threads, "threads are left")


Make = Callable[..., Following]


def test_all_that_fits_is_fetched_and_handed_over_once(follow: Make) -> None:
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    assert sorted(planner.readers.arrivals[0]) == list(range(20))
    assert planner.readers.orders == [ALL]
    statistics = planner.prefetcher.statistics()
    assert (statistics.files, statistics.fetched, statistics.under_way) == (100, 20, 0)
    assert statistics.window_bytes == 20 * CHUNK_BYTES


@pytest.mark.parametrize("name", ["prefetch-3", "prefetcher"])
def test_a_prefetcher_without_a_thread_begins_with_the_next_plan(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before, start = set(threading.enumerate()), threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    readers, memory = MovedReaders(), ScriptedMemory()
    made = Prefetcher(memory, lambda: 20 * CHUNK_BYTES, lambda snapshot: readers)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(OSError, match="no thread can be started"):
            made.follow(MadePlan(SNAPSHOT, ALL), 0.0)
    assert not made.is_running
    eventually(lambda: set(threading.enumerate()) <= before, "threads are left")
    made.follow(MadePlan(SNAPSHOT, ALL), PATIENCE_S)
    eventually(lambda: made.statistics().fetched, "fetches")
    made.close()


def test_chunks_are_fetched_in_the_order_of_their_first_use(follow: Make) -> None:
    inodes = random.Random(3).sample(ALL, 100)
    planner = follow(1, inodes)
    first_uses = list(dict.fromkeys(inode // 5 for inode in inodes))
    for position in range(101):
        planner.readers.at = position
        if position % 20 == 0:
            planner.settle()
            eventually(lambda: not planner.prefetcher.statistics().under_way, "no fetch is left")
    begun = planner.memory.begun
    assert len(begun) > 1
    assert begun == [chunk for chunk in first_uses if chunk in begun]


def test_fetches_at_a_time_are_the_next_ones(follow: Make) -> None:
    inodes = random.Random(4).sample(ALL, 100)
    planner = follow(20, inodes, holds=True)
    first_uses = list(dict.fromkeys(inode // 5 for inode in inodes))
    for done in range(20):
        wanted = first_uses[done : done + FETCHES]
        eventually(lambda wanted=wanted: sorted(planner.memory.under_way) == sorted(wanted))
        planner.settle()
        assert len(planner.memory.under_way) == len(wanted)
        planner.memory.release(first_uses[done])
    assert planner.memory.most_at_a_time == FETCHES


@pytest.mark.parametrize("seed", range(3))
def test_the_budget_holds_whatever_happens(follow: Make, seed: int) -> None:
    chance = random.Random(seed)
    inodes = [
        inode
        for group in range(4)
        for inode in chance.sample(ALL[group * 25 : (group + 1) * 25], 25)
    ]
    planner = follow(8, inodes, holds=True)
    memory, readers = planner.memory, planner.readers
    last = {inode // 5: position for position, inode in enumerate(inodes)}

    def taken() -> int:
        held = [c for c in {*memory.ended, *memory.under_way} if last[c] >= readers.at]
        return len(held) * CHUNK_BYTES + readers.outside

    while readers.at < 100:
        under_way = memory.under_way  # a released one may end at any moment
        if under_way and chance.random() < 0.7:
            memory.release(chance.choice(under_way))
        if inodes[readers.at] // 5 in memory.ended:
            readers.at += 1
        readers.outside = chance.choice([0, 0, 700, 1500])
        at, outside = readers.at, readers.outside
        planner.settle()
        # What was begun under less outside of memory stays.
        assert taken() <= planner.budget_bytes + 1500
        assert planner.prefetcher.statistics().window_bytes >= outside
        assert readers.at == at
    readers.outside = 0
    eventually(lambda: planner.prefetcher.statistics().window_bytes == 0)
    assert sorted(memory.begun) == list(range(20)), "each once"


def test_nothing_is_begun_that_does_not_fit(follow: Make) -> None:
    planner = follow(4.9, holds=True)
    eventually(lambda: len(planner.memory.under_way) == 4)
    planner.settle()
    assert sorted(planner.memory.begun) == [0, 1, 2, 3]
    planner.readers.outside = CHUNK_BYTES
    planner.memory.release(0, 1)
    planner.wait_for_arrivals(0, 1)
    planner.readers.at = 5
    planner.settle()
    assert sorted(planner.memory.begun) == [0, 1, 2, 3], "what is outside of memory counts"
    planner.readers.outside = 0
    eventually(lambda: sorted(planner.memory.begun) == [0, 1, 2, 3, 4])


def test_a_chunk_above_the_budget_is_fetched_alone(follow: Make) -> None:
    planner = follow(0.5, ALL[:15])
    for chunk in range(3):
        planner.wait_for_arrivals(chunk)
        planner.settle()
        assert planner.memory.begun == list(range(chunk + 1))
        planner.readers.at = 5 * (chunk + 1)


def test_where_there_was_no_room_it_is_tried_again(follow: Make) -> None:
    memory = ScriptedMemory()
    for chunk in range(20):
        memory.errors[chunk] = [CacheFull("full")] * (chunk % 3)
    planner = Following(memory, 20, ALL)
    try:
        planner.wait_for_arrivals(*range(20))
        assert sorted(planner.readers.arrivals[0]) == list(range(20))
        statistics = planner.prefetcher.statistics()
        assert statistics.no_room == sum(chunk % 3 for chunk in range(20))
        assert (statistics.fetched, statistics.skipped) == (20, 0)
        assert statistics.window_bytes == 20 * CHUNK_BYTES
    finally:
        planner.prefetcher.close()


def test_where_there_is_no_room_memory_hears_what_is_over_in_between(follow: Make) -> None:
    """The first chunk's last file comes late; the others are done, and only the first `used` can be
    told of."""
    inodes = [0, *range(5, 50), 1, *range(50, 100)]
    planner = follow(10, inodes)
    planner.wait_for_arrivals(*range(10))
    planner.memory.errors[10] = [CacheFull("full")]
    planner.readers.at = 46
    eventually(lambda: len(planner.memory.expected) == 2)
    assert planner.memory.expected[0] == list(range(20))
    assert planner.memory.expected[1] == [0, *range(10, 20)]
    planner.wait_for_arrivals(10)
    planner.readers.at = 47
    eventually(lambda: planner.memory.still_expected() == list(range(10, 20)))


def test_what_cannot_be_fetched_is_left_to_its_readers(follow: Make) -> None:
    memory = ScriptedMemory()
    memory.errors = {3: [Unavailable("gone")], 7: [RuntimeError("a fault of ours")]}
    planner = Following(memory, 20, ALL)
    try:
        planner.wait_for_arrivals(*(set(range(20)) - {3, 7}))
        eventually(lambda: planner.prefetcher.statistics().skipped == 2)
        planner.settle()
        statistics = planner.prefetcher.statistics()
        assert (statistics.fetched, statistics.skipped) == (18, 2)
        assert statistics.window_bytes == 18 * CHUNK_BYTES
        assert sorted(memory.begun) == list(range(20))
    finally:
        planner.prefetcher.close()


@pytest.mark.parametrize("failing", [[10], [10, 11]])
def test_a_master_that_dies_costs_a_moment_and_the_next_one_is_told_everything(
    follow: Make, failing: list[int]
) -> None:
    planner = follow(10)
    planner.wait_for_arrivals(*range(10))
    planner.memory.errors = {chunk: [MasterGone("dead")] for chunk in failing}
    planner.memory.expect_errors = [MasterGone("dead")]
    planner.readers.at = 12
    planner.wait_for_arrivals(10, 11)
    told = planner.memory.expected[1:]
    # A fetch that fails late, after the next master was told, is taken for the end of that one.
    assert 1 <= len(told) <= len(failing)
    assert told == [list(range(2, 20))] * len(told)
    assert planner.prefetcher.statistics().skipped == 0


def test_memory_is_told_which_uses_are_over(follow: Make) -> None:
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    assert planner.memory.expected == [list(range(20))]
    for position, used in [(4, 0), (5, 1), (29, 5), (30, 6), (100, 20)]:
        planner.readers.at = position
        eventually(lambda used=used: planner.memory.used == [used])
        planner.settle()
        assert planner.memory.used == [used]
    assert planner.prefetcher.statistics().position == 100


def test_readers_that_overtake_a_fetch_do_not_get_it_any_more(follow: Make) -> None:
    planner = follow(3, holds=True)
    eventually(lambda: sorted(planner.memory.under_way) == [0, 1, 2])
    planner.readers.at = 7  # they read past node memory
    planner.settle()
    planner.memory.release(0, 1, 2)
    planner.wait_for_arrivals(1, 2)
    eventually(lambda: sorted(planner.memory.under_way) == [3])
    assert sorted(planner.readers.arrivals[0]) == [1, 2]
    statistics = planner.prefetcher.statistics()
    assert statistics.late == 1, "of chunk 1 two files had been read"
    assert statistics.window_bytes == 3 * CHUNK_BYTES


def test_readers_that_are_far_ahead_have_nothing_fetched_behind_them(follow: Make) -> None:
    planner = follow(2, holds=True)
    eventually(lambda: len(planner.memory.under_way) == 2)
    planner.readers.at = 90
    planner.settle()
    planner.memory.release_all()
    planner.wait_for_arrivals(18, 19)
    assert sorted(planner.memory.begun) == [0, 1, 18, 19]


def test_an_epochs_end_leads_into_the_next(follow: Make) -> None:
    planner = follow(6)
    backwards = ALL[::-1]
    planner.add_order(backwards)
    eventually(lambda: len(planner.memory.expected) == 2)
    assert planner.memory.expected[-1] == [*range(20), *range(19, -1, -1)]
    for position in range(
        0, 86, 5
    ):  # a chunk that is passed before it has come does not arrive any more
        planner.readers.at = position
        planner.wait_for_arrivals(*range(min(position // 5 + 6, 20)))
    planner.readers.at = 90
    # Chunks 18 and 19 are held for this epoch, and four more places are free: four of the next one
    # are fetched.
    eventually(lambda: len(planner.memory.begun) == 24)
    planner.settle()
    assert sorted(planner.memory.begun[20:]) == [16, 17, 18, 19]
    assert len(planner.readers.arrivals) == 1
    assert sorted(planner.readers.arrivals[0]) == list(range(20)), "not before it begins"
    assert planner.prefetcher.statistics().window_bytes == 6 * CHUNK_BYTES

    planner.readers.at = 0
    planner.advance()
    # Until the second order has begun, the last arrivals are those of the first.
    eventually(lambda: len(planner.readers.arrivals) == 2)
    planner.wait_for_arrivals(14, 15, 16, 17, 18, 19)
    planner.settle()
    assert planner.readers.orders == [ALL, backwards]
    assert sorted(planner.readers.arrivals[1]) == [14, 15, 16, 17, 18, 19], "each once"
    assert planner.memory.still_expected() == list(range(19, -1, -1))
    statistics = planner.prefetcher.statistics()
    assert statistics.window_bytes == 6 * CHUNK_BYTES
    assert statistics.position == 0
    for position in range(0, 101, 5):
        planner.readers.at = position
        planner.wait_for_arrivals(*(19 - n for n in range(min(position // 5 + 6, 20))))
    eventually(lambda: planner.prefetcher.statistics().window_bytes == 0)
    assert sorted(planner.readers.arrivals[1]) == list(range(20))


def test_a_fetch_for_the_order_before_gives_its_room_back(follow: Make) -> None:
    planner = follow(2, holds=True)
    eventually(lambda: sorted(planner.memory.under_way) == [0, 1])
    planner.add_order([50, 55, 60])
    planner.advance()
    eventually(lambda: len(planner.readers.orders) == 2)
    planner.memory.release(0, 1)
    eventually(lambda: sorted(planner.memory.under_way) == [10, 11])
    planner.memory.release(10, 11)
    planner.wait_for_arrivals(10, 11)
    planner.settle()
    assert [sorted(chunks) for chunks in planner.readers.arrivals] == [[], [10, 11]]
    assert planner.prefetcher.statistics().window_bytes == 2 * CHUNK_BYTES


class SlowPlan(MadePlan):
    """A plan whose order is laid out when a test says so."""

    def __init__(self, snapshot: MadeSnapshot, inodes: list[int], after: str) -> None:
        super().__init__(snapshot, inodes, after=after)
        self.is_free = threading.Event()

    @property
    def order(self) -> ReadingPlan:
        assert self.is_free.wait(60)
        return super().order


def test_readers_that_go_on_before_their_order_is_laid_out_are_waited_for(follow: Make) -> None:
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    following = SlowPlan(SNAPSHOT, [7], after=planner.plans[-1].id)
    planner.plans.append(following)
    planner.prefetcher.follow(following)
    planner.advance()
    eventually(lambda: planner.prefetcher.plans == (following,))
    planner.settle()
    assert planner.prefetcher.statistics().files == 100
    assert planner.readers.orders == [ALL]
    following.is_free.set()
    eventually(lambda: planner.readers.orders == [ALL, [7]])
    planner.wait_for_arrivals(1)
    assert planner.prefetcher.statistics().files == 1


def test_an_order_that_is_laid_out_after_a_later_one_is_dropped() -> None:
    planner = Planner()
    run = PrefetcherRun(planner, ScriptedMemory(False), MovedReaders(), lambda: CHUNK_BYTES)
    for inodes in (ALL[:50], ALL[50:]):
        planner.add(MadePlan(SNAPSHOT, inodes), CHUNK_BYTES)
        run.step()
    first, both = run.tasks.get_nowait(), run.tasks.get_nowait()
    run.results += [PlannedOrder.of(both), PlannedOrder.of(first)]
    run.step()
    assert run.statistics().files == 100


def test_an_order_without_chunks_is_no_fault(follow: Make) -> None:
    planner = follow(1, [])
    planner.settle()
    assert planner.memory.expected == [[]]
    planner.add_order([7])
    planner.advance()
    planner.wait_for_arrivals(1)


def test_the_readers_wake_it(follow: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before it would look by itself, hundreds of times."""
    monkeypatch.setattr(prefetcher, "_INTERVAL_S", 10 * PATIENCE_S)
    monkeypatch.setattr(prefetcher, "_LEAST_INTERVAL_S", 10 * PATIENCE_S)
    memory, wake = ScriptedMemory(), os.eventfd(0, os.EFD_NONBLOCK)

    class WakingReaders(MovedReaders):
        def wake_fds(self) -> list[int]:
            return [wake]

        def position(self) -> int:
            try:
                os.eventfd_read(wake)
            except BlockingIOError:
                pass
            return super().position()

    readers = WakingReaders()
    looks = threading.Semaphore(0)
    readers.on_look = looks.release
    woken = Prefetcher(memory, lambda: 500, lambda snapshot: readers)
    woken.follow(MadePlan(SNAPSHOT, ALL))
    try:
        for _ in range(300):
            while looks.acquire(blocking=False):
                pass
            os.eventfd_write(wake, 1)
            assert looks.acquire(timeout=PATIENCE_S)
    finally:
        woken.close()
        os.close(wake)


def descriptors() -> int:
    """Of the kind that a follower opens; without what tests before have left to the garbage
    collector."""
    gc.collect()
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "eventfd" in os.readlink(f"/proc/self/fd/{fd}")
    return found


def test_it_ends_within_its_timeout_and_leaves_nothing() -> None:
    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(5):
        planner = Following(ScriptedMemory(), 20, ALL)
        planner.wait_for_arrivals(0)
        planner.prefetcher.close(PATIENCE_S)
        planner.prefetcher.close()  # once more is no error
        planner.add_order(ALL)
        assert not planner.prefetcher.is_running
        assert planner.readers.closed >= 1
    assert set(threading.enumerate()) <= threads
    assert descriptors() <= before


def test_a_fetch_that_hangs_is_left_to_itself() -> None:
    before, threads = descriptors(), set(threading.enumerate())
    memory = ScriptedMemory(holds=True)
    planner = Following(memory, 2, ALL)
    eventually(lambda: len(memory.under_way) == 2)
    begun = time.monotonic()
    planner.prefetcher.close(timeout_s=0.3)
    assert time.monotonic() - begun < scaled_by_load(2)
    eventually(lambda: len(set(threading.enumerate()) - threads) == 2, "only what hangs is left")
    memory.release_all()
    eventually(lambda: set(threading.enumerate()) <= threads)
    assert sorted(memory.begun) == [0, 1], "no further fetch after the end"
    del planner
    eventually(lambda: descriptors() <= before)


def test_one_without_a_plan_can_be_closed() -> None:
    before, threads = descriptors(), set(threading.enumerate())
    idle = Prefetcher(ScriptedMemory(), lambda: 500, lambda snapshot: MovedReaders())
    assert idle.statistics() == PrefetchStatistics()
    idle.close()
    assert descriptors() <= before
    assert set(threading.enumerate()) <= threads


def test_one_that_stops_expects_nothing_any_more(follow: Make) -> None:
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    planner.prefetcher.stop()
    eventually(lambda: planner.memory.expected[-1] == [])
    eventually(lambda: planner.readers.closed)
    planner.prefetcher.close()
    assert planner.memory.expected[-1] == []


def test_one_that_is_closed_leaves_what_is_expected(follow: Make) -> None:
    """Another one may follow it, and must not be interfered with."""
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    planner.prefetcher.close()
    assert planner.memory.expected == [list(range(20))]


def test_one_whose_thread_finds_no_plan_while_it_is_closed_leaves_what_is_expected(
    follow: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = follow(20)
    planner.wait_for_arrivals(*range(20))
    run, plans = planner.run, planner.prefetcher._planner
    close = plans.close

    def close_and_wait() -> None:
        close()
        run.wake()
        run._thread.join(PATIENCE_S)

    monkeypatch.setattr(plans, "close", close_and_wait)
    planner.prefetcher.close()
    assert not run._thread.is_alive()
    assert planner.memory.expected == [list(range(20))]


def test_one_that_is_closed_while_a_plan_begins_leaves_what_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = ScriptedMemory()
    idle = Prefetcher(memory, lambda: 500, lambda snapshot: MovedReaders())
    add = idle._planner.add

    def add_and_close(plan: MadePlan, memory_bytes: int) -> bool:
        begins = add(plan, memory_bytes)
        idle.close()
        return begins

    monkeypatch.setattr(idle._planner, "add", add_and_close)
    idle.follow(MadePlan(SNAPSHOT, ALL), PATIENCE_S)
    idle.close(PATIENCE_S)
    assert memory.expected == []


def test_readers_that_fail_end_it_with_a_warning(
    follow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    planner = follow(1)
    planner.wait_for_arrivals(0)

    def fail() -> None:
        raise ValueError("a fault of ours")

    planner.readers.on_look = fail
    eventually(lambda: not planner.prefetcher.is_running)
    eventually(lambda: planner.readers.closed)
    assert "prefetching of the plan has failed: a fault of ours" in caplog.text

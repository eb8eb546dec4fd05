"""How far ahead the follower fetches, for stores and readers of all kinds, in simulated time."""

import numpy as np
import pytest

from dieselfs.prefetch.rate_estimate import RateEstimate
from tests.dieselfs.prefetch.simulated_node import TICK_S, Node, Store, by_batches, steadily

SLOW_DISK = Store(150e6, 0.0083)
SLOW_DISK_BYTES_PER_S = 4e6 / (4e6 / 150e6 + 0.0083)
OBJECT_STORE = Store(100e6, 0.05, one_queue=False)
FAST = Store(2e9, 0.002)


@pytest.mark.parametrize(
    ("store", "rate"),
    [(SLOW_DISK, SLOW_DISK_BYTES_PER_S), (OBJECT_STORE, 8 * 4e6 / (0.05 + 4e6 / 100e6))],
)
@pytest.mark.parametrize("manner", ["steady", "batches"])
def test_a_reader_at_four_fifths_of_the_store_waits_for_the_first_group_only(
    store: Store, rate: float, manner: str
) -> None:
    node = Node(store, budget_chunks=25)
    wanted = steadily(0.8 * rate) if manner == "steady" else by_batches(0.8 * rate, 128 * 100_000)
    course = node.run(wanted)
    assert course.waited_s(after_file=node.group_files) < 0.01 * len(course.position) * TICK_S
    assert node.prefetcher.statistics().fetched == 200


@pytest.mark.parametrize("reader_bytes_per_s", [20e6, 100e6, 200e6])
@pytest.mark.parametrize("batch_files", [1, 64])
def test_of_a_fast_store_no_more_is_held_than_is_needed(
    reader_bytes_per_s: float, batch_files: int
) -> None:
    node = Node(FAST, budget_chunks=100)
    node.run(steadily(400e6), until=9 * node.group_files)  # what came before anything was known
    node.run(
        by_batches(reader_bytes_per_s, batch_files * 100_000), until=12 * node.group_files + 128
    )
    course = node.run(by_batches(reader_bytes_per_s, batch_files * 100_000))
    # This group and, when it comes to its end, the next one.
    assert max(course.window_bytes) <= 23 * node.chunk_bytes
    mean = sum(course.window_bytes) / len(course.window_bytes)
    assert mean <= 14 * node.chunk_bytes
    assert course.waited_s() == 0


@pytest.mark.parametrize("store", [SLOW_DISK, OBJECT_STORE])
def test_a_reader_faster_than_the_store_keeps_it_busy(store: Store) -> None:
    node = Node(store, budget_chunks=30)
    course = node.run(steadily(2e9))
    idle = [
        idle and waits for idle, waits in zip(course.store_idle, course.reader_waits, strict=True)
    ]
    assert not any(idle[2:])
    assert sum(course.store_idle[:-1]) < 0.02 * len(course.store_idle)


def test_with_the_least_budget_the_order_is_still_read_to_its_end() -> None:
    node = Node(SLOW_DISK, budget_chunks=12)
    course = node.run(steadily(2e9))
    assert max(course.window_bytes) <= 12 * node.chunk_bytes


def test_after_a_pause_the_window_is_as_before() -> None:
    node = Node(FAST, budget_chunks=100)
    node.run(steadily(100e6), until=11 * node.group_files)
    before = node.run(steadily(100e6), until=14 * node.group_files)
    held = node.prefetcher.statistics().window_bytes
    paused = node.run(
        lambda seconds: 100e6 * max(0.0, seconds - 30), until=14 * node.group_files + 1
    )
    assert len(paused.position) * TICK_S > 29
    assert max(paused.window_bytes[1000:-100]) <= held + 11 * node.chunk_bytes, "nothing is hoarded"
    after = node.run(steadily(100e6))
    assert after.waited_s() == 0
    assert max(after.window_bytes) <= max(before.window_bytes) + 2 * node.chunk_bytes


def test_a_reader_that_grows_faster_is_kept_up_with() -> None:
    node = Node(FAST, budget_chunks=100)
    node.run(steadily(400e6), until=10 * node.group_files)
    node.run(steadily(20e6), until=12 * node.group_files + 128)
    course = node.run(steadily(400e6))
    assert course.waited_s() < 0.05


def test_what_is_in_memory_does_not_pass_for_a_fast_store() -> None:
    """Half of the chunks were kept from the epoch before."""
    rate = 0.8 * SLOW_DISK_BYTES_PER_S
    node = Node(SLOW_DISK, budget_chunks=60, in_memory=lambda chunk: chunk % 2 == 0)
    course = node.run(steadily(rate))
    assert course.waited_s(after_file=node.group_files) == 0
    assert node.prefetcher.statistics().arrival_bytes_per_s < 200e6


def test_memory_is_told_of_each_use_once() -> None:
    node = Node(SLOW_DISK, budget_chunks=30)
    node.run(steadily(200e6))
    node._step()
    (expected,) = node.memory.expected
    uses = node.prefetcher._window._orders[0].uses
    assert list(expected) == [str(node.snapshot.chunk(chunk).id) for chunk in uses.chunks.tolist()]
    assert node.memory.used == sorted(set(node.memory.used))
    assert node.memory.used[-1] == 200


def test_before_anything_was_measured_all_is_due() -> None:
    pace = RateEstimate(0.0)
    far, size = np.array([10**12]), np.array([1])
    assert pace.is_due(far, size)
    pace.consumed(1, 0.5)
    pace.consumed(10**6, 1.0)
    assert pace.is_due(far, size)
    pace.begun(1.0)
    pace.arrived(10**6, 0.1, 1.1, still_under_way=False)
    assert not pace.is_due(far, size)
    assert pace.is_due(np.array([10**12, 10**3]), np.array([1, 10**6])), "any of the coming ones"


def test_a_wait_for_the_first_read_is_no_slow_reading() -> None:
    pace = RateEstimate(0.0)
    pace.consumed(10**6, 60.0)
    assert pace.consumption == 0
    pace.consumed(3 * 10**6, 61.0)
    assert pace.consumption == pytest.approx(2e6)


def test_rates_are_those_of_the_times_in_which_something_was_done() -> None:
    pace, now = RateEstimate(0.0), 0.0
    for second in range(1, 20):
        pace.begun(now)
        pace.arrived(10**6, 0.01, now + 0.1, still_under_way=True)
        pace.arrived(10**6, 0.02, now + 0.2, still_under_way=False)
        now += 1.0
        pace.consumed(second * 2 * 10**6, now)
        pace.consumed(second * 2 * 10**6, now)  # nothing new
    assert pace.consumption == pytest.approx(2e6)
    assert pace.arrival == pytest.approx(10e6, rel=0.1)
    assert 0.01 < pace.latency < 0.02
    assert pace.burst == 2e6

"""The limit in simulated stores: no thread and no clock, so that what is found holds on any
machine."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from chunkstore.stores.aimd import UPLOADS, Aimd, LimitPolicy

Service = Callable[[float, int], float]
"""When a read that begins now ends, with so many in flight (itself too)."""


def run(
    aimd: Aimd, service: Service, seconds: float, now: float = 0.0, readers: int = 1000
) -> tuple[float, list[int], int]:
    """Keep as many reads in flight as the limit lets. The time, the limit after each read, and how
    many there were."""
    in_flight: list[tuple[float, float]] = []
    limits, end = [], now + seconds
    while now < end:
        while len(in_flight) < min(aimd.limit, readers):
            heapq.heappush(in_flight, (service(now, len(in_flight) + 1), now))
        if len(in_flight) >= aimd.limit:
            aimd.reached()
        now, began = heapq.heappop(in_flight)
        aimd.succeeded("k", began, now)
        limits.append(aimd.limit)
    return now, limits, len(limits)


def disk(service_s: float, jitter: float = 0.1, seed: int = 1) -> Service:
    """One queue: a read begins when the one before it has ended."""
    draw, free = random.Random(seed), 0.0

    def service(now: float, in_flight: int) -> float:
        nonlocal free
        free = max(now, free) + service_s * draw.uniform(1 - jitter, 1 + jitter)
        return free

    return service


def cloud(latency_s: float, jitter: float = 0.3, seed: int = 1) -> Service:
    """All at once, each as fast."""
    draw = random.Random(seed)
    return lambda now, in_flight: now + latency_s * draw.uniform(1 - jitter, 1 + jitter)


def test_a_store_that_serves_all_at_once_is_asked_for_as_much_as_may_be() -> None:
    aimd = Aimd(LimitPolicy())
    _, limits, reads = run(aimd, cloud(0.03), 60)
    assert max(limits) == 64
    assert limits.index(64) < 1000
    assert reads > 0.95 * 60 / 0.03 * 64  # what measuring costs


@pytest.mark.parametrize(("jitter", "used"), [(0.3, 0.97), (0.5, 0.97), (0.8, 0.4)])
@pytest.mark.parametrize("seed", [1, 2])
def test_latencies_that_vary_much_are_no_queue(jitter: float, used: float, seed: int) -> None:
    _, _, reads = run(Aimd(LimitPolicy()), cloud(0.03, jitter, seed), 30)
    assert reads >= used * 30 / 0.03 * 64


def test_stragglers_do_not_cut_the_limit() -> None:
    draw, even = random.Random(2), cloud(0.03)

    def service(now: float, in_flight: int) -> float:
        return now + (1.5 if draw.random() < 0.02 else even(now, in_flight) - now)

    aimd = Aimd(LimitPolicy())
    run(aimd, service, 60)
    assert aimd.limit >= 48


def test_a_disk_with_one_queue_is_kept_busy_by_few() -> None:
    """4 MiB at 150 MB/s and a seek: 36 ms."""
    aimd = Aimd(LimitPolicy())
    _, limits, reads = run(aimd, disk(0.036), 240)
    late = limits[len(limits) // 2 :]
    assert sum(late) / len(late) <= 8
    assert min(limits) >= 2
    assert reads >= 0.99 * 240 / 0.036


def test_latency_alone_leaves_enough_in_flight_to_hide_what_readers_do_in_between() -> None:
    policy = LimitPolicy()
    aimd = Aimd(policy)
    now, _, _ = run(aimd, cloud(0.03), 30)
    _, limits, _ = run(aimd, disk(0.036), 600, now)
    assert aimd.decreases > 3
    late = limits[len(limits) // 2 :]
    assert min(late) == policy.lowest_by_latency // 2  # for the round that is measured
    assert policy.lowest_by_latency in late
    assert max(late) <= policy.lowest_by_latency + 2


def test_the_limit_does_not_creep_up() -> None:
    aimd = Aimd(LimitPolicy())
    now, _limits, _ = run(aimd, disk(0.036), 240)
    _, later, _ = run(aimd, disk(0.036), 1200, now)
    assert max(later) <= 12


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    aimd = Aimd(LimitPolicy())
    run(aimd, cloud(0.03), 60, readers=3)
    assert aimd.limit == LimitPolicy().first


def test_a_limit_that_is_not_reached_is_not_cut() -> None:
    """With 3 of 8 in flight, other latencies are not the limit's doing."""
    aimd = Aimd(LimitPolicy())
    now, _, _ = run(aimd, cloud(0.03), 20, readers=3)
    run(aimd, cloud(0.3), 60, now, readers=3)
    assert (aimd.limit, aimd.decreases) == (LimitPolicy().first, 0)


def test_a_store_that_becomes_slower_for_good_is_asked_for_as_much_again() -> None:
    """Its latency, not its load, has risen: after the limit was cut it comes back."""
    aimd = Aimd(LimitPolicy())
    now, _, _ = run(aimd, cloud(0.03), 30)
    now, limits, _ = run(aimd, cloud(0.12), 5, now)
    assert min(limits) < 32
    run(aimd, cloud(0.12), 120, now)
    assert aimd.limit >= 48


@pytest.mark.parametrize("failures", [1, 20])
def test_unavailable_halves_it_once_for_all_in_flight(failures: int) -> None:
    aimd = Aimd(LimitPolicy(first=40))
    for number in range(failures):
        aimd.failed(began=0.0 + number / 100, now=1.0 + number / 100)
    assert (aimd.limit, aimd.decreases) == (20, 1)
    aimd.failed(began=2.0, now=2.1)
    assert aimd.limit == 10


def test_never_below_the_lowest_nor_above_the_highest() -> None:
    aimd = Aimd(LimitPolicy(lowest=2, highest=10))
    for now in range(1, 20):
        aimd.failed(now, now)
    assert aimd.limit == 2
    _, limits, _ = run(aimd, cloud(0.03), 100, 100.0)
    assert max(limits) == 10


def test_growth_is_by_one_after_the_first_cut() -> None:
    aimd = Aimd(LimitPolicy(first=32, measure_every_s=1e9))
    now, limits, _ = run(aimd, cloud(0.03), 2)
    assert limits[-1] == 64  # doubled
    aimd.failed(now, now)
    _, limits, _ = run(aimd, cloud(0.03), 0.5, now + 1)
    steps = {b - a for a, b in itertools.pairwise(limits)}
    assert steps == {0, 1}


def test_kinds_are_compared_with_their_own() -> None:
    """Reads of 4 MiB among reads of 4 KiB are no sign of a queue."""
    aimd = Aimd(LimitPolicy())
    for number in range(4000):
        now = number / 100
        aimd.reached()
        aimd.succeeded("small" if number % 2 else "large", now, now + (0.001 if number % 2 else 1))
    assert aimd.decreases == 0
    assert aimd.limit == 64


def test_kinds_are_bounded() -> None:
    aimd = Aimd(LimitPolicy())
    for number in range(10_000):
        aimd.succeeded(f"kind {number}", number, number + 1)
    assert len(aimd._rounds) <= 64


def failing(aimd: Aimd, first: float, failures: int) -> None:
    for number in range(failures):
        aimd.failed(first + number, first + number)


def answering(aimd: Aimd, first: float, answers: int) -> None:
    for number in range(answers):
        aimd.reached()
        aimd.succeeded("k", first + number, first + number + 0.1)


def test_after_failures_it_doubles_up_to_half_of_what_it_was() -> None:
    aimd = Aimd(LimitPolicy(first=32))
    failing(aimd, 0.0, 20)
    assert (aimd.limit, aimd.least, aimd.failures) == (2, 2, 20)
    limits = []
    for number in range(4):
        answering(aimd, 100.0 + 10 * number, LimitPolicy().recovery_reads)
        limits.append(aimd.limit)
    assert limits == [4, 8, 16, 16]


def test_a_store_that_goes_on_throttling_is_not_asked_for_more() -> None:
    aimd = Aimd(LimitPolicy(first=32))
    failing(aimd, 0.0, 20)
    for number in range(20):
        answering(aimd, 100.0 + 10 * number, LimitPolicy().recovery_reads - 1)
        aimd.failed(109.0 + 10 * number, 109.0 + 10 * number)
    assert aimd.limit == 2


def test_a_limit_that_is_not_reached_does_not_recover() -> None:
    aimd = Aimd(LimitPolicy(first=32))
    failing(aimd, 0.0, 20)
    for number in range(100):
        aimd.succeeded("k", 100.0 + number, 100.1 + number)
    assert aimd.limit == 2


def test_pauses_double_up_to_the_longest_and_shrink_with_answers() -> None:
    policy = LimitPolicy()
    aimd = Aimd(policy)
    pauses = []
    for now in range(8):
        aimd.failed(now, now)
        pauses.append(aimd.not_before - now)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    answering(aimd, 100.0, 2)
    aimd.failed(200.0, 200.0)
    assert aimd.not_before == pytest.approx(200.25)


def test_a_limit_that_processes_share_is_that_of_each_times_their_number() -> None:
    shared = UPLOADS.times(3)
    assert (shared.first, shared.highest, shared.lowest_by_latency) == (24, 48, 24)
    assert shared.lowest == UPLOADS.lowest

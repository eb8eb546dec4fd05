"""Priorities, thresholds and write budgets: what Tectonic-Shift's policies admit and reinsert."""

from __future__ import annotations

import random

import pytest

from chunkstore.ssd.policies.elapsed import Elapsed
from chunkstore.ssd.policies.job_specifications import MAX_JOBS, JobSpecification, PublishedJobs
from chunkstore.ssd.policies.priority import future, historic, hybrid
from chunkstore.ssd.policies.request_history import RequestedBytes, RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policies.threshold_policy import ThresholdPolicy
from chunkstore.ssd.policies.write_budget import ThresholdController, WriteAllowance

P1, P2, P3 = (Bucket(f"d:{n}") for n in (1, 2, 3))
NAN, INFINITE = float("nan"), float("inf")


def job(name: str, *buckets: Bucket, finished: tuple[Bucket, ...] = ()) -> JobSpecification:
    return JobSpecification(name, "d", buckets, frozenset(finished))


def policy(priority: str, **settings: float) -> ThresholdPolicy:
    history = RequestHistory(capacity_segments=10_000)
    return ThresholdPolicy(priority, history=history, **settings)  # type: ignore[arg-type]


def test_historic_is_total_over_unique_bytes() -> None:
    found = historic({P1: RequestedBytes(100, 250), P2: RequestedBytes(0, 50)})
    assert found == {P1: 2.5}


def test_future_counts_active_jobs_that_have_not_finished_the_bucket() -> None:
    jobs = [job("a", P1, P2, finished=(P1,)), job("b", P2, P3, P3), job("idle", P3)]
    assert future(jobs, {"a", "b", "unpublished"}) == {P2: 2, P3: 1}


def test_hybrid_is_the_greater() -> None:
    assert hybrid({P1: 2.5, P2: 1}, {P2: 3, P3: 1}) == {P1: 2.5, P2: 3, P3: 1}


def test_jobs_whose_lease_ends_are_forgotten() -> None:
    jobs = PublishedJobs()
    jobs.publish(JobSpecification("a", "d", (P1,), lease_s=30), 0)
    jobs.publish(JobSpecification("b", "d", (P1,), lease_s=30), 0)
    jobs.publish(JobSpecification("a", "d", (P2,), lease_s=30), 20)
    assert [known.job for known in jobs.alive(29)] == ["a", "b"]
    assert [known.buckets for known in jobs.alive(30)] == [(P2,)]
    jobs.withdraw("a")
    jobs.withdraw("a")
    assert not jobs.alive(30)


def test_jobs_are_bounded() -> None:
    jobs = PublishedJobs()
    for number in range(MAX_JOBS):
        jobs.publish(job(str(number), P1), 0)
    jobs.publish(job("0", P2), 0)
    with pytest.raises(ValueError, match="no more than"):
        jobs.publish(job("more", P1), 0)


@pytest.mark.parametrize(("name", "lease_s"), [("", 9), ("a", 0), ("a", -1), ("a", NAN)])
def test_bad_specifications_are_errors(name: str, lease_s: float) -> None:
    with pytest.raises(ValueError):
        JobSpecification(name, "d", (P1,), lease_s=lease_s)


def test_historic_admits_a_bucket_that_is_read_again() -> None:
    found = policy("historic")
    found.requested("a", P1, 1, 100)
    found.refresh(0)
    assert not found.admits(P1, 1, 100)
    found.requested("b", P1, 1, 100)
    assert not found.admits(P1, 1, 100)  # decided at the last refresh
    found.refresh(10)
    assert found.admits(P1, 1, 100)


def test_future_admits_at_the_first_read_what_two_active_jobs_will_read() -> None:
    found = policy("future")
    for published in (job("a", P1, P2), job("b", P2, P3)):
        found.publish(published, 0)
        found.requested(published.job, published.buckets[0], 1, 1)
    found.refresh(0)
    assert [found.admits(bucket, 0, 1) for bucket in (P1, P2, P3)] == [False, True, False]
    found.publish(job("a", P1, P2, finished=(P1, P2)), 5)
    found.refresh(10)
    assert not found.admits(P2, 0, 1)


def test_a_job_that_dies_without_a_word_counts_until_its_lease_ends() -> None:
    found = policy("future")
    for name in ("a", "b"):
        found.publish(job(name, P1), 0)
        found.requested(name, P1, 1, 1)
    found.refresh(50)
    assert found.admits(P1, 0, 1)
    found.publish(job("a", P1), 55)
    found.refresh(61)
    assert not found.admits(P1, 0, 1)


def test_future_is_historic_while_no_job_tells_anything() -> None:
    found = policy("future")
    for bucket, reads in ((P1, 2), (P2, 1)):
        for _ in range(reads):
            found.requested("a", bucket, 1, 1)
    found.refresh(0)
    assert [found.admits(bucket, 0, 1) for bucket in (P1, P2)] == [True, False]
    found.publish(job("a", P1), 5)
    found.refresh(10)
    assert not found.admits(P1, 0, 1), "one job reads it"
    found.refresh(70)
    assert found.admits(P1, 0, 1), "the job's lease has ended"


def test_a_clock_that_is_set_back_or_stands_still_harms_nothing() -> None:
    found = policy("future", write_budget=100)
    for name in ("a", "b"):
        found.publish(job(name, P1), 1000)
        found.requested(name, P1, 1, 1)
    for now in (1000, 1010, -5e9, -5e9, -5e9 + 1):
        found.refresh(now)
        assert found.admits(P1, 0, 1)
    with pytest.raises(ValueError, match="no time"):
        found.refresh(NAN)


def test_elapsed_time_counts_only_forwards() -> None:
    elapsed = Elapsed()
    assert [elapsed.at(now) for now in (100, 103, 50, 51)] == [0, 3, 3, 4]


def test_reinsertion_is_at_an_offset_and_off_unless_told() -> None:
    without, found = policy("future"), policy("future", reinsertion_offset=1)
    for tested in (without, found):
        for name in ("a", "b", "c"):
            tested.publish(job(name, P1, *([P2] if name != "c" else [])), 0)
            tested.requested(name, P1, 1, 1)
        tested.refresh(0)
    assert [found.reinserts(bucket, 0, 1) for bucket in (P1, P2)] == [True, False]
    assert [found.admits(bucket, 0, 1) for bucket in (P1, P2)] == [True, True]
    assert not without.reinserts(P1, 0, 1)


def test_the_controller_finds_the_threshold_that_a_budget_permits() -> None:
    controller = ThresholdController(100, minimum=1)
    rates = {1.0: 1000, 2.0: 400, 3.0: 50}  # bytes a second of the buckets of each priority
    threshold, wanted = 1.0, []
    for _ in range(600):
        rate = sum(rate for priority, rate in rates.items() if priority > threshold)
        wanted.append(rate)
        threshold = controller.threshold(rate * 10, 10, 3.0)
        assert 1 <= threshold <= 3
    late = wanted[300:]
    assert 80 < sum(late) / len(late) < 120  # 50 most of the time, 450 now and then
    assert set(late) <= {50, 450, 0}


def test_the_threshold_falls_back_to_its_minimum() -> None:
    controller = ThresholdController(100, minimum=1.1)
    for _ in range(50):
        controller.threshold(10**6, 10, 5)
    found = [controller.threshold(0, 10, 5) for _ in range(300)]
    assert found[0] > 4
    assert found[-1] == 1.1
    assert controller.threshold(0, 0, 5) == pytest.approx(1.1)


def test_an_allowance_saves_up_only_so_much() -> None:
    allowance = WriteAllowance(100)
    allowance.grow(1e6)
    allowance.take(29_999)
    assert allowance.permits()
    allowance.take(1)
    assert not allowance.permits()


def test_under_pressure_a_bucket_keeps_the_same_part_of_its_segments() -> None:
    found = policy("future", write_budget=100_000)
    choose = random.Random(9)
    keys = [choose.getrandbits(64) for _ in range(2000)]
    shares = []
    for now in range(0, 1000, 10):
        for name in ("a", "b"):
            found.publish(job(name, P1), now)
            found.requested(name, P1, keys[0], 1)
        found.refresh(now)
        admitted = [key for key in keys if found.admits(P1, key, 10_000)]
        assert admitted == [key for key in keys if found.admits(P1, key, 0)]
        shares.append(len(admitted) / len(keys))
    assert shares[0] == 1
    # 10 s of budget are 100 segments, or 5 %; the threshold has found that.
    assert 0.03 < sum(shares[-20:]) / 20 < 0.07


@pytest.mark.parametrize("priority", ["historic", "future", "hybrid"])
def test_admitted_and_reinserted_bytes_keep_the_budget_at_all_times(priority: str) -> None:
    found = policy(priority, write_budget=1000, reinsertion_offset=0, minimum=0.5)
    choose, written = random.Random(7), 0
    for now in range(0, 3000, 10):
        for name in ("a", "b"):
            found.publish(job(name, P1, P2), now)
        found.refresh(now)
        for _ in range(1000):
            bucket, key = choose.choice((P1, P2)), choose.getrandbits(64)
            found.requested(choose.choice("ab"), bucket, key, 100)
            if found.admits(bucket, key, 100) or found.reinserts(bucket, key, 100):
                found.written(100)
                written += 100
        assert written <= 1000 * (now + 10) + 100
    assert written > 0.9 * 1000 * 3000


@pytest.mark.parametrize(
    "settings",
    [
        {"minimum": 0},
        {"minimum": -1},
        {"minimum": NAN},
        {"minimum": INFINITE},
        {"write_budget": 0},
        {"write_budget": -1},
        {"write_budget": NAN},
        {"write_budget": INFINITE},
        {"reinsertion_offset": -1},
        {"reinsertion_offset": NAN},
    ],
)
def test_bad_settings_are_errors(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        policy("hybrid", **settings)

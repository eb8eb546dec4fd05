"""Both engines against arithmetic, against each other, and against the paper's Table 6."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dieselfs.allocation.estimator import job_rate, lru_hits
from dieselfs.allocation.jobs import Allocation, Job, JobState, Resources
from dieselfs.allocation.policies.naming import policy_of
from dieselfs.allocation.simulation.events import EventKind
from dieselfs.allocation.simulation.metrics import Outcome
from dieselfs.allocation.simulation.simulator import Grain, simulate
from dieselfs.allocation.simulation.table6 import PAPER_MINUTES, micro_benchmark
from dieselfs.errors import UsageError
from tests.dieselfs.allocation.simulation.made_policies import Quotas

GRAINS = list(Grain)
GB = 1000**3


def one_job(cached: float, io: float, passes: float = 6, **more: bool) -> tuple[Job, Resources]:
    """A job of 100 GB at 100 MB/s, so 1,000 s an epoch."""
    job = Job("one", "images", 100 * GB, 100e6, 1, passes, **more)
    return job, Resources(1, int(cached * 100 * GB), io)


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize(("cached", "io"), [(0.5, 40e6), (0.25, 60e6), (0.9, 200e6), (0.0, 50e6)])
def test_the_first_epoch_misses_and_later_ones_have_equation_4(
    grain: Grain, cached: float, io: float
) -> None:
    job, total = one_job(cached, io)
    found = simulate([job], Quotas(), total, grain=grain, beat_s=10)
    first = job.dataset_bytes / min(job.speed_bytes_per_s, io)
    later = job.dataset_bytes / job_rate(job.speed_bytes_per_s, io, cached)
    assert found.first_epochs_s()["one"] == pytest.approx(first, rel=0.02)
    assert found.ends_s["one"] == pytest.approx(first + 5 * later, rel=0.02)


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("cached", [0.25, 0.5, 0.75])
def test_an_lru_pool_hits_what_the_estimator_says(grain: Grain, cached: float) -> None:
    job, total = one_job(cached, 1e9, passes=9)
    found = simulate([job], Quotas(is_lru=True), total, grain=grain, beat_s=10)
    steady = [beat for beat in found.beats if 1000 <= beat.at_s < 9000]
    hits = 1 - sum(beat.io_rate for beat in steady) / sum(beat.rate for beat in steady)
    assert hits == pytest.approx(lru_hits(cached), abs=0.02)


@pytest.mark.parametrize("is_lru", [False, True])
@pytest.mark.parametrize("grain", GRAINS)
def test_items_that_repeat_are_hit_at_once(grain: Grain, is_lru: bool) -> None:
    """Section 7.4: with draws with replacement LRU is as good as uniform caching."""
    cached = 0.9
    job, total = one_job(cached, 1e9, passes=4, repeats_items=True)
    found = simulate([job], Quotas(is_lru=is_lru), total, grain=grain, beat_s=10)
    missed = sum(beat.io_rate * beat.length_s for beat in found.beats)
    filling = -np.log(1 - cached)  # epochs until it is full, as misses are what is not held
    assert missed / job.dataset_bytes == pytest.approx(
        cached + (1 - cached) * (4 - filling), rel=0.05
    )


@pytest.mark.parametrize("grain", GRAINS)
def test_a_job_that_comes_later_finds_what_another_has_cached(grain: Grain) -> None:
    jobs = [
        Job("first", "images", 100 * GB, 100e6, 1, 3),
        Job("second", "images", 100 * GB, 100e6, 1, 2, submitted_s=1000),
    ]
    found = simulate(jobs, Quotas(), Resources(2, 100 * GB, 100e6), grain=grain, beat_s=10)
    assert found.mean_jct_s() == pytest.approx(2500, rel=0.02)
    assert found.ends_s["second"] == pytest.approx(3000, rel=0.02)


@pytest.mark.parametrize("is_lru", [False, True])
@pytest.mark.parametrize("grain", GRAINS)
def test_jobs_that_start_together_share_what_each_has_fetched(grain: Grain, is_lru: bool) -> None:
    """Two orders are independent, so the store gives the dataset once and not twice."""
    jobs = [Job(name, "images", 100 * GB, 100e6) for name in ("first", "second")]
    policy = Quotas(is_lru=is_lru)
    found = simulate(jobs, policy, Resources(2, 100 * GB, 1e9), grain=grain, beat_s=10)
    missed = sum(beat.io_rate * beat.length_s for beat in found.beats)
    assert missed == pytest.approx(100 * GB, rel=0.03)
    # In the middle of the epoch a job hits what the other one has read: half.
    assert found.beats[49].effective_bytes == pytest.approx(50 * GB, rel=0.08)


class Halved(Quotas):
    """Its quota is half as large from the second epoch on."""

    def quotas(self, running: Sequence[JobState], total: Resources) -> dict[str, int]:
        quotas = super().quotas(running, total)
        is_first = all(state.left_bytes > 4.9 * state.job.dataset_bytes for state in running)
        return quotas if is_first else {name: size // 2 for name, size in quotas.items()}


@pytest.mark.parametrize("grain", GRAINS)
def test_a_smaller_quota_evicts_and_the_rest_stays_effective(grain: Grain) -> None:
    job, total = one_job(0.8, 40e6)
    found = simulate([job], Halved(), total, grain=grain, beat_s=10)
    later = job.dataset_bytes / job_rate(job.speed_bytes_per_s, 40e6, 0.4)
    assert found.ends_s["one"] == pytest.approx(2500 + 5 * later, rel=0.03)


def micro(
    system: str,
    grain: Grain,
    io: float = 200e6,
    cache: int | None = None,
    beat_s: float = 240,
) -> Outcome:
    jobs, total = micro_benchmark()
    total = Resources(total.gpus, total.cache_bytes if cache is None else cache, io)
    return simulate(jobs, policy_of("fifo", system), total, grain=grain, beat_s=beat_s)


@pytest.mark.parametrize("system", PAPER_MINUTES)
def test_both_grains_agree_on_table_6_and_with_the_paper(system: str) -> None:
    fluid, items = micro(system, Grain.FLUID), micro(system, Grain.ITEMS)
    figures = {
        "jct": (fluid.mean_jct_s() / 60, items.mean_jct_s() / 60),
        "makespan": (fluid.makespan_s() / 60, items.makespan_s() / 60),
    }
    for paper, (measure, (ours, of_items)) in zip(
        PAPER_MINUTES[system], figures.items(), strict=True
    ):
        assert ours == pytest.approx(of_items, rel=0.03), measure
        allowed = 0.08 if (system, measure) == ("quiver", "makespan") else 0.05
        assert min(abs(ours / minutes - 1) for minutes in paper) <= allowed, measure


def test_systems_agree_without_a_cache_and_without_a_bottleneck() -> None:
    free = [
        micro(system, Grain.FLUID, io=100e9, beat_s=600).makespan_s() for system in PAPER_MINUTES
    ]
    bare = [
        micro(system, Grain.FLUID, cache=0, beat_s=600).makespan_s() for system in PAPER_MINUTES
    ]
    assert free == pytest.approx([free[0]] * 4, rel=1e-3)
    assert bare == pytest.approx([bare[0]] * 4, rel=1e-3)
    assert bare[0] > 1.5 * free[0]


def test_the_same_simulation_twice_is_the_same() -> None:
    for grain in GRAINS:
        first, second = (micro("silod", grain, beat_s=600) for _ in range(2))
        assert first.events == second.events


def test_jobs_wait_for_gpus_and_events_come_in_order() -> None:
    jobs = [Job(f"job{n}", f"data{n}", 10 * GB, 100e6, 1, 1) for n in range(3)]
    found = simulate(jobs, Quotas(), Resources(1, 0, 1e9), beat_s=10)
    assert [found.ends_s[job.name] for job in jobs] == pytest.approx([100, 200, 300])
    kinds = [event.kind for event in found.events if event.job == 2]
    assert kinds == [EventKind.SUBMIT, EventKind.START, EventKind.EPOCH, EventKind.END]
    assert [beat.waiting for beat in found.beats if beat.at_s in (0, 150, 250)] == [2, 1, 0]


class Nothing:
    """It gives no job a GPU."""

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        return Allocation()


def test_a_cluster_that_stands_still_is_refused() -> None:
    job, total = one_job(0.5, 40e6)
    with pytest.raises(UsageError, match="no job reads anything"):
        simulate([job], Nothing(), total)


def test_two_jobs_of_one_name_are_refused() -> None:
    job, total = one_job(0.5, 40e6)
    with pytest.raises(UsageError, match="same name"):
        simulate([job, job], Quotas(), total)


def test_metrics_of_a_job_that_waits_for_half_of_its_data() -> None:
    job, total = one_job(0.0, 50e6)
    found = simulate([job], Quotas(), total, beat_s=10)
    assert found.rate_over_ideal() == pytest.approx(0.5)
    assert found.mean_io_rate() == pytest.approx(50e6)
    assert found.fairness() == pytest.approx((1, 1, 1), rel=0.01)
    assert found.jct_percentiles_s() == pytest.approx([12_000] * 3)

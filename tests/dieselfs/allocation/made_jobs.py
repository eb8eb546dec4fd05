"""Jobs for tests: Table 6 of the paper, and random ones."""

from __future__ import annotations

import random
from dataclasses import replace

from dieselfs.allocation.jobs import Allocation, Job, JobState, Policy, Resources

MB, GB, TB = 10**6, 10**9, 10**12

TABLE_6_TOTAL = Resources(8, 2 * TB, 200.0 * MB)
"""8 GPUs, 2 TB and 1.6 Gbps (§7.1.1)."""


def table_6_jobs() -> list[JobState]:
    """The five jobs of §7.1.1, none of them begun."""
    images = [("resnet", 114, 13), ("efficientnet", 69, 10)]
    jobs = [
        Job(f"{model}-{number}", f"{model}-{number}", 1300 * GB, speed * MB, 1, epochs)
        for model, speed, epochs in images
        for number in (1, 2)
    ]
    jobs.append(Job("bert", "web-search", 20_900 * GB, 8.0 * MB, 4, 0.07))
    return [waiting(job) for job in jobs]


def waiting(job: Job) -> JobState:
    return JobState(job, job.total_bytes)


def job(
    name: str,
    dataset_gb: float = 100,
    speed_mb: float = 100,
    passes: float = 10,
    gpus: int = 1,
    dataset: str | None = None,
    regular: bool = True,
) -> Job:
    size, speed = int(dataset_gb * GB), speed_mb * MB
    return Job(name, dataset or name, size, speed, gpus, passes, regular=regular)


def running(
    of: Job, left_passes: float | None = None, effective_gb: float = 0.0, held_gb: float = 0.0
) -> JobState:
    left = of.total_bytes if left_passes is None else left_passes * of.dataset_bytes
    effective = effective_gb * GB
    return JobState(of, left, True, effective, max(held_gb * GB, effective))


def random_jobs(chance: random.Random, jobs: int, datasets: int) -> list[JobState]:
    """Jobs of a wide range of sizes and speeds, which share some datasets."""
    sizes = [int(10 ** chance.uniform(10, 13.5)) for _ in range(datasets)]
    made = []
    for number in range(jobs):
        dataset = number if number < datasets else chance.randrange(datasets)
        made.append(
            Job(
                f"job-{number:03}",
                f"data-{dataset:03}",
                sizes[dataset],
                10 ** chance.uniform(6, 9),
                chance.choice((1, 1, 1, 2, 4, 8)),
                10 ** chance.uniform(-1, 2),
                submitted_s=chance.uniform(0, 1000),
            )
        )
    return [waiting(job) for job in made]


def random_total(chance: random.Random, states: list[JobState]) -> Resources:
    """Totals that fall short of, or exceed, what the jobs ask for."""
    gpus = sum(state.job.gpus for state in states)
    sizes = sum({state.job.dataset: state.job.dataset_bytes for state in states}.values())
    speeds = sum(state.job.speed_bytes_per_s for state in states)
    return Resources(
        max(8, int(gpus * 10 ** chance.uniform(-1, 0.2))),
        int(sizes * 10 ** chance.uniform(-2, 0.2)),
        speeds * 10 ** chance.uniform(-2, 0.2),
    )


def random_allocation(
    chance: random.Random, states: list[JobState], total: Resources
) -> Allocation:
    """An allocation that divides everything at random."""

    def parts(count: int) -> list[float]:
        weights = [chance.expovariate(1) for _ in range(count)]
        return [weight / sum(weights) for weight in weights]

    jobs = [state.job for state in states]
    datasets = {made.dataset: made.dataset_bytes for made in jobs}
    gpus, quotas, io = parts(len(jobs)), parts(len(datasets)), parts(len(jobs))
    return Allocation(
        {
            made.name: min(made.gpus, part * total.gpus)
            for made, part in zip(jobs, gpus, strict=True)
        },
        {
            name: min(size, int(part * total.cache_bytes))
            for (name, size), part in zip(datasets.items(), quotas, strict=True)
        },
        {made.name: part * total.io_bytes_per_s for made, part in zip(jobs, io, strict=True)},
    )


def when_effective(states: list[JobState], found: Allocation) -> list[JobState]:
    """The jobs that run, with their whole quota held and effective."""
    made = []
    for state in states:
        quota = min(found.cache_bytes.get(state.job.dataset, 0), state.job.dataset_bytes)
        runs = found.gpus.get(state.job.name, 0) > 0
        held = quota if runs else 0
        made.append(
            replace(state, is_running=runs, effective_bytes=float(held), held_bytes=float(quota))
        )
    return made


def in_steady_state(policy: Policy, states: list[JobState], total: Resources) -> Allocation:
    """The allocation after the first epochs: the quotas of the first one are effective."""
    return policy.schedule(when_effective(states, policy.schedule(states, total)), total)


def check_sums(found: Allocation, states: list[JobState], total: Resources) -> None:
    """Nothing is given twice, and nobody gets what it does not need."""
    sizes = {state.job.dataset: state.job.dataset_bytes for state in states}
    cache = sum(found.cache_bytes.values()) + found.irregular_cache_bytes
    assert cache <= total.cache_bytes
    assert all(0 <= quota <= sizes[name] for name, quota in found.cache_bytes.items())
    assert sum(found.io_bytes_per_s.values()) <= total.io_bytes_per_s * (1 + 1e-9)
    assert all(share >= 0 for share in found.io_bytes_per_s.values())
    assert sum(found.gpus.values()) <= total.gpus * (1 + 1e-9)
    gpus = {state.job.name: state.job.gpus for state in states}
    assert all(0 <= share <= gpus[name] + 1e-9 for name, share in found.gpus.items())

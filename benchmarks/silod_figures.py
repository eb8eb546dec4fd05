"""SiloD's Figures 13 to 16, for `bench_silod`: variations of the 400-GPU cluster, and curricula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.harness import report
from benchmarks.silod_runs import CLUSTER, CLUSTER_BEAT_S, ORDERS, SYSTEMS, Change, figures
from dieselfs.allocation.jobs import Allocation, Job, JobState, Policy, Resources
from dieselfs.allocation.policies.fair_share import fair_io
from dieselfs.allocation.policies.naming import policy_of
from dieselfs.allocation.simulation.curriculum import Curriculum, curriculum_s
from dieselfs.allocation.simulation.known_orders import Rule
from dieselfs.allocation.simulation.metrics import Outcome
from dieselfs.allocation.simulation.simulator import simulate
from dieselfs.allocation.simulation.trace import GB, synthetic_trace, with_shared_datasets

PAPER_FAIRNESS = {
    "silod": 2.56,
    "silod without IO control": 1.94,
    "coordl": 1.51,
    "alluxio": 1.39,
    "quiver": 1.35,
}
BANDWIDTHS_GB = (2, 4, 6, 8, 10, 12)
GPU_SPEEDS = (1.0, 2.0, 3.0, 4.0)
SHARED = (0.0, 0.1, 0.25, 0.5, 1.0)
PAPER_SHARED = {"fifo": 0.931, "sjf": 0.78, "max-min": 0.78}
"""The JCT with all datasets shared, over that without."""
STEPS = (50_000, 75_000)
PAPER_CURRICULUM_MIN = 367
RULES: Sequence[Rule] = ("uniform", "lru", "plan")
_SEEDS = 5


class WithoutIoControl:
    """A policy whose remote IO goes by the simple fair share of the cloud provider (§7.2)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        found = self._policy.schedule(jobs, total)
        running = [slowed(state, found) for state in jobs if found.gpu_share(state.job) > 0]
        shares = fair_io(running, found.cache_bytes, total.io_bytes_per_s)
        return replace(found, io_bytes_per_s=shares)


def slowed(state: JobState, found: Allocation) -> JobState:
    """Return the job at the speed that its part of the GPUs allows."""
    speed = state.job.speed_bytes_per_s * found.gpu_share(state.job)
    return replace(state, job=replace(state.job, speed_bytes_per_s=speed))


def figure_13(change: Change, count: int, load: float) -> None:
    """Report the fairness of each system under max-min, and its course."""
    jobs, total = synthetic_trace(count, CLUSTER.gpus, load), change.of(CLUSTER)
    policies: dict[str, Policy] = {system: policy_of("max-min", system) for system in SYSTEMS}
    policies["silod without IO control"] = WithoutIoControl(policies["silod"])
    for system, policy in policies.items():
        found = simulate(jobs, policy, total, beat_s=CLUSTER_BEAT_S["max-min"])
        report(
            "figure 13",
            system=system,
            **figures(found),
            jobs=count,
            paper_fairness=PAPER_FAIRNESS[system],
            course=course(found),
        )


def course(found: Outcome) -> dict[str, list[float]]:
    """Return the fairness over time, averaged by parts, for a plot."""
    beats = [(beat.fairness, beat.at_s / 86400) for beat in found.beats if beat.fairness]
    parts = np.array_split(np.array([fairness for fairness, _ in beats]), 100)
    times = np.array_split(np.array([days for _, days in beats]), 100)
    means = [part.mean(axis=0) for part in parts if len(part)]
    return {
        "days": [round(float(part[0]), 2) for part in times if len(part)],
        "min": [round(float(mean[0]), 3) for mean in means],
        "median": [round(float(mean[2]), 3) for mean in means],
    }


def figure_14(change: Change, count: int, load: float) -> None:
    """Report the JCT by remote IO, and by the speed of the GPUs."""
    jobs = synthetic_trace(count, CLUSTER.gpus, load)
    for bandwidth in BANDWIDTHS_GB:
        total = replace(change.of(CLUSTER), io_bytes_per_s=bandwidth * float(GB))
        silod, alluxio = (jct_min(jobs, "fifo", system, total) for system in ("silod", "alluxio"))
        report(
            "figure 14a",
            jobs=count,
            io_gb_per_s=bandwidth,
            silod_jct_min=silod,
            alluxio_jct_min=alluxio,
            alluxio_over_silod=alluxio / silod,
        )
    for factor in GPU_SPEEDS:
        # Faster GPUs end jobs sooner. They arrive as much faster, so that the GPUs stay as busy.
        faster = synthetic_trace(count, CLUSTER.gpus, load * factor, speed_factor=factor)
        total = change.of(CLUSTER)
        silod, quiver = (jct_min(faster, "max-min", each, total) for each in ("silod", "quiver"))
        report(
            "figure 14b",
            jobs=count,
            gpu_speed=factor,
            silod_jct_min=silod,
            quiver_jct_min=quiver,
            quiver_over_silod=quiver / silod,
        )


def jct_min(jobs: Sequence[Job], order: str, system: str, total: Resources) -> float:
    found = simulate(jobs, policy_of(order, system), total, beat_s=CLUSTER_BEAT_S[order])
    return found.mean_jct_s() / 60


def figure_15(change: Change, count: int, load: float) -> None:
    """Report the JCT by the share of the jobs whose datasets are shared."""
    jobs, total = synthetic_trace(count, CLUSTER.gpus, load), change.of(CLUSTER)
    for order in ORDERS:
        alone = None
        for share in SHARED:
            found = jct_min(with_shared_datasets(jobs, share), order, "silod", total)
            alone = found if alone is None else alone
            report(
                "figure 15",
                order=order,
                jobs=count,
                shared=share,
                jct_min=found,
                over_unshared=found / alone,
                **({"paper_over_unshared": PAPER_SHARED[order]} if share == 1 else {}),
            )


def figure_16() -> None:
    """Report curricula with each cache: the mean and the spread over seeds.

    `plan` evicts by the draws to come, whose seed it is told.
    The paper gives neither cache, nor remote IO, nor the number of iterations: only the ratio of
    the two caches can be compared with it.
    """
    for step in STEPS:
        for cached in (0.25, 0.5):
            job = Curriculum(step)
            minutes = {
                rule: [
                    curriculum_s(job, cached * job.dataset_bytes, 50e6, rule=rule, seed=seed) / 60
                    for seed in range(_SEEDS)
                ]
                for rule in RULES
            }
            means = {name: float(np.mean(found)) for name, found in minutes.items()}
            report(
                "figure 16",
                step=step,
                cached_share=cached,
                jct_min=means,
                spread_min={name: max(found) - min(found) for name, found in minutes.items()},
                lru_over_uniform=means["lru"] / means["uniform"],
                plan_over_uniform=means["plan"] / means["uniform"],
                paper_jct_min=PAPER_CURRICULUM_MIN,
            )

"""How much do jobs gain if cache and remote IO are allocated to them (SiloD, EuroSys '23)?

The simulator (`dieselfs/allocation/simulation`) runs SiloD's policy and three baselines: Alluxio
(one LRU pool), CoorDL (a static cache a GPU) and Quiver (whole datasets). The paper's figures are
printed beside ours. The same command prints the same figures: nothing is measured by a clock but
`seconds`.

    table6     eight GPUs, five jobs (Table 6, Figure 9), with one reading of the paper's sizes for
               all systems. Bars: each figure within 5 % of the nearer of the paper's two, Quiver's
               makespan within 8 %
    readings   the same with each reading of the sizes
    sweep      96 GPUs, FIFO, cache a GPU and load (Figures 10, 11). Bars: SiloD is first, 1.4 times
               as good on JCT as Alluxio and CoorDL at 125 GB a GPU and load 8, and never more than
               1 % behind any baseline; Algorithm 2 as printed is beside it
    cluster    400 GPUs, 8,000 jobs, three orders and four systems (Figure 12). Bar: 300 s a run
    figure13   fairness over time under max-min, with and without control of remote IO
    figure14   remote IO (FIFO, SiloD and Alluxio) and GPU speed (max-min, SiloD and Quiver)
    figure15   jobs that share datasets, with SiloD
    figure16   curriculum learning with LRU and with uniform caching. Bar: within 2 %. Beside them
               a cache that knows the seed of the draws
    known-order
               one job with its plan, uniform caching and LRU, at equal memory: bytes of the store
               an epoch. Bar: plan and uniform within 2 % of d - c + window. Jobs that share a
               dataset and tell their orders, and draws: hits of Belady, and of the orders merged by
               predicted time. Bar: 0.9 of Belady
    max-min    1,000 random instances. Bars: no baseline and no random allocation has a larger
               minimum of equation 8 (1e-6), and both ways of solving agree to 1e-4
    time       a plan with explanations for 400 jobs and 400 datasets. Bar: 1 s
    enforce    three real mounts over one slow store, with `dlcmd alloc run` (`silod_enforce`), and
               with an LRU tier; only on request, by root. Bars: SiloD's sum and each of its jobs
               within 10 % of equation 4, and 2.5 times the sum of LRU

Figures 13 to 15 take a quarter of the jobs of `cluster`, at the same load.

Expectation for table6: SiloD has all jobs at full speed from the second epoch on, which is
52.6 + 2 * 69 + 8 of 200 MB/s; all systems are equal before.

    python -m benchmarks.bench_silod --only table6 [--remote-io 100GB/s] [--cache 0]
    python -m benchmarks.bench_silod [--only cluster,figure16] [--systems silod,quiver]
        [--jobs 8000] > benchmarks/results/silod.jsonl
    python -m benchmarks.bench_silod --only enforce [--store-rate 24MB/s] [--systems silod,lru]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from benchmarks import silod_enforce, silod_figures, silod_known_order, silod_policies
from benchmarks.harness import report
from benchmarks.silod_runs import (
    CACHES_A_GPU_GB,
    CLUSTER,
    CLUSTER_BEAT_S,
    ORDERS,
    SYSTEMS,
    Change,
    figures,
    over,
    throughput,
)
from dieselfs.allocation.job_table import byte_rate
from dieselfs.allocation.jobs import Job, Resources
from dieselfs.allocation.policies.naming import policy_of
from dieselfs.allocation.simulation.metrics import Outcome
from dieselfs.allocation.simulation.simulator import BEAT_S, Grain, simulate
from dieselfs.allocation.simulation.table6 import (
    CHOSEN,
    PAPER_FIRST_EPOCH_MINUTES,
    PAPER_MINUTES,
    READINGS,
    micro_benchmark,
)
from dieselfs.allocation.simulation.trace import GB, synthetic_trace

AS_PRINTED = "algorithm-2"
"""SiloD with its greedy rule as the paper prints it, beside ours in the sweep."""
FIGURES = ("figure13", "figure14", "figure15", "figure16")
PURE = ("known-order", "max-min", "time")
QUESTIONS = ("table6", "readings", "sweep", "cluster", *FIGURES, *PURE)
LOADS = (1.0, 2.0, 4.0, 8.0)
SWEEP_JOBS = 400
CLUSTER_JOBS = 8000
FIGURE_JOBS = 2000


def table_6(
    systems: Sequence[str], change: Change, reading: str = CHOSEN, beat_s: float = BEAT_S
) -> None:
    """Report a line a system; the paper's figures only if its set-up is unchanged."""
    jobs, total = micro_benchmark(READINGS[reading])
    for system in systems:
        policy = policy_of("fifo", system)
        found = simulate(jobs, policy, change.of(total), beat_s=beat_s)
        items = simulate(jobs, policy, change.of(total), grain=Grain.ITEMS, beat_s=beat_s)
        first = sorted(found.first_epochs_s().values())
        report(
            "table 6",
            system=system,
            jct_min=found.mean_jct_s() / 60,
            makespan_min=found.makespan_s() / 60,
            first_epoch_min=first[0] / 60,
            ends_min={name: end / 60 for name, end in found.ends_s.items()},
            reading=reading,
            items={"jct_min": items.mean_jct_s() / 60, "makespan_min": items.makespan_s() / 60},
            **({} if change else beside_the_paper(system, found)),
        )
        if reading == CHOSEN:
            rates = throughput(found)
            report("figure 9", system=system, **rates)


def beside_the_paper(system: str, found: Outcome) -> dict[str, object]:
    """Return the paper's minutes, and how far ours are from the nearer of two."""
    jct, makespan = PAPER_MINUTES[system]

    def off(seconds: float, paper: tuple[int, int]) -> float:
        return min((seconds / 60 / minutes - 1 for minutes in paper), key=abs)

    return {
        "paper": {
            "jct_min": jct,
            "makespan_min": makespan,
            "first_epoch_min": PAPER_FIRST_EPOCH_MINUTES,
        },
        "off": {
            "jct": off(found.mean_jct_s(), jct),
            "makespan": off(found.makespan_s(), makespan),
        },
    }


def sweep(systems: Sequence[str], change: Change, count: int) -> None:
    """Report a line a system, cache a GPU and load; the last figures compare with SiloD."""
    for cache_gb in CACHES_A_GPU_GB:
        for load in LOADS:
            jobs = synthetic_trace(count, 96, load)
            total = change.of(Resources(96, 96 * cache_gb * GB, 1e9))
            silod: Outcome | None = None
            for system in systems:
                found = simulate(jobs, policy_of("fifo", system), total)
                silod = found if system == "silod" else silod
                report(
                    "96 GPUs",
                    system=system,
                    cache_gb_a_gpu=cache_gb,
                    load=load,
                    jobs=count,
                    **figures(found),
                    **(over(found, silod) if silod else {}),
                )
                if (cache_gb, load) == (CACHES_A_GPU_GB[0], LOADS[-1]):
                    report("figure 11", system=system, **throughput(found))


def cluster(
    systems: Sequence[str], orders: Sequence[str], change: Change, count: int, load: float
) -> None:
    """Report a line an order and system."""
    jobs: list[Job] = synthetic_trace(count, 400, load)
    total = change.of(CLUSTER)
    for order in orders:
        silod: Outcome | None = None
        for system in systems:
            begin = time.perf_counter()
            policy = policy_of(order, system)
            found = simulate(jobs, policy, total, beat_s=CLUSTER_BEAT_S[order])
            silod = found if system == "silod" else silod
            report(
                "400 GPUs",
                system=system,
                order=order,
                load=load,
                jobs=count,
                **figures(found),
                **(over(found, silod) if silod else {}),
                seconds=time.perf_counter() - begin,
            )


def _named(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{name!r} is not among {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(QUESTIONS), help="questions")
    parser.add_argument(
        "--systems", help="of those that are simulated, or of `enforce` (default: all)"
    )
    parser.add_argument("--orders", default=",".join(ORDERS), help="of `cluster`")
    parser.add_argument("--remote-io", metavar="RATE", help="in the place of each set-up's own")
    parser.add_argument("--cache", metavar="SIZE", help="in the place of each set-up's own")
    parser.add_argument(
        "--jobs", type=int, help="of `sweep` (400), `cluster` (8,000) and its figures (2,000)"
    )
    parser.add_argument("--load", type=float, default=1.0, help="of `cluster`")
    parser.add_argument("--store-rate", default="24MB/s", help="of `enforce`")
    parser.add_argument(
        "--settle", type=float, default=silod_enforce.SETTLE_S, help="seconds of `enforce` before"
    )
    parser.add_argument("--instances", type=int, default=1000, help="of `max-min`")
    options = parser.parse_args()
    questions = _named(options.only, (*QUESTIONS, "enforce"), parser)
    if "enforce" in questions:
        real = options.systems or ",".join(silod_enforce.SYSTEMS)
        rate = byte_rate("--store-rate", options.store_rate)
        silod_enforce.enforce(_named(real, silod_enforce.SYSTEMS, parser), rate, options.settle)
        return
    simulated = options.systems or ",".join(SYSTEMS)
    systems = _named(simulated, (*SYSTEMS, AS_PRINTED), parser)
    orders = _named(options.orders, ORDERS, parser)
    change = Change(options.remote_io, options.cache)
    if "table6" in questions:
        table_6(systems, change)
    if "readings" in questions:
        for reading in READINGS:
            if reading != CHOSEN:
                table_6(systems, change, reading)
    if "sweep" in questions:
        compared = systems if AS_PRINTED in systems else [*systems, AS_PRINTED]
        sweep(compared, change, options.jobs or SWEEP_JOBS)
    if "cluster" in questions:
        cluster(systems, orders, change, options.jobs or CLUSTER_JOBS, options.load)
    count = options.jobs or FIGURE_JOBS
    if "figure13" in questions:
        silod_figures.figure_13(change, count, options.load)
    if "figure14" in questions:
        silod_figures.figure_14(change, count, options.load)
    if "figure15" in questions:
        silod_figures.figure_15(change, count, options.load)
    if "figure16" in questions:
        silod_figures.figure_16()
    if "known-order" in questions:
        silod_known_order.one_job()
        silod_known_order.shared()
    if "max-min" in questions:
        silod_policies.max_min(options.instances)
    if "time" in questions:
        silod_policies.plan_time()


if __name__ == "__main__":
    main()

"""How many bytes does a cache policy that knows the jobs keep away from a slow store, live?

Two jobs read through two mounts of one node. The mounts share an SSD tier over one slow store, in
which a chunk of 4 MiB takes 90 ms to find and 10 ms to read. The tier has room for half of what the
jobs read. Each job reads its dataset three times, each time in another chunk-wise shuffled order
(`benchmarks/policy_jobs.py`).

    different    the jobs have a dataset each
    shared       both read the same dataset, in orders of their own

The answer is the bytes that the store gave in each epoch, and its time, with no tier, with an LRU
tier and with `--ssd-policy next-use`. Bar: LRU reads 1.3 times as many bytes, over epochs 2 and 3.

Expectation: of one job's random orders LRU keeps 1/2 + 1/2 ln 1/2 = 0.15 of a dataset of which it
has room for half, and a fixed half keeps 0.5: 0.85 / 0.5 = 1.7 times fewer bytes.

    python -m benchmarks.bench_ssd_policies_live [--only different,shared] [--chunks 150]

Ranks of regions are computed every 10 s. With 150 chunks that is half an epoch, which costs jobs
that share a dataset most; with 400 chunks an epoch takes a minute.

As root. Through cache nodes: `bench_ssd_policies_cluster`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import report
from benchmarks.policy_jobs import (
    BAR,
    DIFFERENT,
    EPOCHS,
    SHARED,
    datasets,
    later_bytes,
    running,
    total_bytes,
)

SYSTEMS = ("none", "lru", "next-use")
CASES = {"different": DIFFERENT, "shared": SHARED}


def measure(folder: Path, case: str, systems: Sequence[str]) -> None:
    jobs = CASES[case]
    size = total_bytes(folder, jobs)
    later: dict[str, int] = {}
    for system in systems:
        ssd = folder / f"ssd-{case}-{system}"
        options = ["--ssd", "none"]
        if system != "none":
            options = ["--ssd", str(ssd), "--ssd-size", str(size // 2)]
        if system not in ("none", "lru"):
            options += ["--ssd-policy", system]
        with running(folder, jobs, options) as run:
            epochs = [run.read(epoch) for epoch in range(EPOCHS)]
        later[system] = later_bytes(epochs)
        report(
            "live policies",
            case=case,
            policy=system,
            dataset_bytes=size,
            store_bytes=[epoch.store_bytes for epoch in epochs],
            seconds=[round(epoch.seconds, 2) for epoch in epochs],
            lru_over_this=later["lru"] / later[system] if "lru" in later else None,
            bar=BAR if system == "next-use" else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--chunks", type=int, default=150, help="chunks of each dataset")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    options = parser.parse_args()
    with datasets("policies-live", options.chunks) as folder:
        for case in options.only.split(","):
            measure(folder, case, options.systems.split(","))


if __name__ == "__main__":
    main()

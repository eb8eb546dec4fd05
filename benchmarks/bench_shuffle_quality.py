"""How long does it take to say how good a shuffle is?

1,280,000 files in 1,000 class folders and 35,556 chunks, packed as `put` does by default (scatter),
and the same with class-sorted chunks (labels given by rank in the chunks). Expectation: an order is
30-90 ms (bench_shuffle), sorting batches of 256 two-byte labels and of 256 chunk numbers some 30 ns
a sample each, the rest as much again: 0.3 s a group size, and the report measures about a dozen of
them.

    python -m benchmarks.bench_shuffle_quality [--files 1280000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from benchmarks.bench_snapshot import build, make_dataset
from benchmarks.harness import report, run_rounds, scratch
from dieselfs.shuffle.class_labels import class_folder_labels
from dieselfs.shuffle.quality import ShuffleReport, usual_group_sizes
from dieselfs.shuffle.quality import report as measure
from metadata.snapshot import Snapshot

_CLASSES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    dataset = make_dataset(options.files, min(_CLASSES, options.files))
    with scratch("quality") as folder, Snapshot.open(build(dataset, folder)) as snapshot:
        labels = class_folder_labels(snapshot)
        by_rank = np.arange(snapshot.file_count) * _CLASSES // snapshot.file_count
        sizes = usual_group_sizes(snapshot.chunk_count)
        times = run_rounds(
            {
                "labels": lambda: len(class_folder_labels(snapshot)) < 0 or None,
                "one group size": lambda: measure(snapshot, [100], labels).files < 0 or None,
                "report": lambda: measure(snapshot, sizes, labels).files < 0 or None,
                "report, sorted": lambda: measure(snapshot, sizes, by_rank).files < 0 or None,
            },
            options.rounds,
        )
        report(
            "how long does a report on shuffle quality take",
            files=snapshot.file_count,
            chunks=snapshot.chunk_count,
            group_sizes=len(sizes),
            seconds={name: times.median(name) for name in times.seconds},
        )
        for name, given in (("scatter", labels), ("sorted by class", by_rank)):
            _report_packing(name, measure(snapshot, sizes, given))


def _report_packing(packing: str, found: ShuffleReport) -> None:
    report(
        f"how well are classes mixed, {packing} packing",
        classes_per_batch={
            "full shuffle": found.full.classes_per_batch.mean,
            **{str(group.group_size): group.order.classes_per_batch.mean for group in found.groups},
        },
        distance={str(group.group_size): group.order.distance for group in found.groups},
        recommended_group=found.recommended.group_size,
        recommended_bytes=found.recommended.memory_bytes,
    )
    print(f"{packing}: groups of {found.recommended.group_size} or more", file=sys.stderr)


if __name__ == "__main__":
    main()

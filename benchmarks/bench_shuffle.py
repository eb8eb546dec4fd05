"""How long does an epoch's shuffled order take: the indices, and the control file's text?

1,280,000 files in 35,000 chunks (110 KB each, 4 MiB chunks) and in 1,250 (4 KiB each), groups of
100 chunks; `numpy.random.Generator.permutation` of as many numbers beside them. Expectation:
hashing is 10 operations of 1 ns a file, sorting a few thousand numbers that lie in the cache 10-60
ns a file, so 30-90 ms; the text is two gathers of 30 bytes a path, 0.25 µs: 0.3 s.

    python -m benchmarks.bench_shuffle [--files 1280000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np
import numpy.typing as npt

from benchmarks.bench_snapshot import build, make_dataset
from benchmarks.harness import report, run_rounds, scratch
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot


def bounds(files: int, chunks: int) -> npt.NDArray[np.uint32]:
    return np.linspace(0, files, chunks + 1).astype(np.uint32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    dataset = make_dataset(options.files, min(1000, options.files))
    files = dataset.state.files
    many, few = bounds(files, -(-files * 35 // 1280)), bounds(files, -(-files // 1024))
    generator = np.random.default_rng(1)
    with scratch("shuffle") as folder, Snapshot.open(build(dataset, folder)) as snapshot:
        inodes = shuffle_order(snapshot.chunk_first_inode, 1, 0).inodes
        assert np.array_equal(np.sort(inodes), np.arange(files))
        assert snapshot.paths_text(inodes).count(b"\n") == files
        times = run_rounds(
            {
                "indices, 110 KB files": lambda: len(shuffle_order(many, 1, 0)) < 0 or None,
                "indices, 4 KiB files": lambda: len(shuffle_order(few, 1, 0)) < 0 or None,
                "text": lambda: len(snapshot.paths_text(inodes)) < 0 or None,
                "permutation": lambda: len(generator.permutation(files)) < 0 or None,
            },
            options.rounds,
        )
    figures = {
        "indices_of_110_kb_files_s": times.median("indices, 110 KB files"),
        "indices_of_4_kib_files_s": times.median("indices, 4 KiB files"),
        "text_s": times.median("text"),
        "permutation_s": times.median("permutation"),
        "indices_to_permutation": statistics.median(
            times.ratios("indices, 110 KB files", "permutation")
        ),
    }
    bars = {
        "indices_of_110_kb_files_s": "<= 0.15",
        "indices_of_4_kib_files_s": "<= 0.15",
        "text_s": "<= 1.5",
    }
    for name, value in figures.items():
        print(f"{name:32}{value:12.4f}  {bars.get(name, '')}", file=sys.stderr)
    report("how long does a shuffled order take", files=files, **figures)


if __name__ == "__main__":
    main()

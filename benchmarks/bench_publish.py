"""What does the snapshot that a put publishes cost the put?

`dlcmd put -j 2` of a warm directory of files of few bytes, with `--publish` against `--no-publish`,
in turn, the whole command timed. Files of few bytes are the worst case: the put costs 15 µs of
processor time a file. The snapshot costs 4 µs, in a process that builds it from the commits while
the put applies these to the index (4 µs on another core). So 0.98 of the rate is expected here,
with two cores. A scan of the index after the last commit and a build would cost 2.5 µs, on one
core: 0.89. Files of 4 KiB cost the put 25 µs each, and the snapshot is 0.98 of it or more.

    python -m benchmarks.bench_publish        # 500,000 files of 8 bytes, then of 4 KiB (8 GB)
    python -m benchmarks.bench_publish --files 100000 --rounds 3 --sizes 8,112640
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.harness import (
    dlcmd,
    empty,
    make_tree,
    report,
    run_rounds,
    scratch,
    spread,
    warm,
)


def compare(files: int, size_bytes: int, rounds: int, folder: Path) -> None:
    source, place = folder / "source", folder / "place"
    make_tree(source, files, 100, size_bytes)
    warm(source)
    snapshots: list[float] = []
    sizes: list[int] = []
    processor: dict[str, list[float]] = {"--publish": [], "--no-publish": []}

    def put(how: str) -> float:
        empty(place)
        before = os.times()
        begin = time.perf_counter()
        done = json.loads(
            dlcmd("--json", "put", "-q", "-j", "2", how, f"{source}/", "dl://bench", folder=place)
        )
        elapsed = time.perf_counter() - begin
        after = os.times()
        used = after.children_user - before.children_user
        processor[how].append(used + after.children_system - before.children_system)
        assert done["files"] == files
        if how == "--publish":
            snapshots.append(done["snapshot_elapsed_s"])
            sizes.append(done["snapshot_bytes"])
        return elapsed

    times = run_rounds(
        {how: lambda how=how: put(how) for how in processor},  # type: ignore[misc]
        rounds,
        alternates=True,
    )
    empty(place)
    cpu = [
        none / own
        for own, none in zip(processor["--publish"], processor["--no-publish"], strict=True)
    ][1:]
    report(
        f"dlcmd put -j 2 of {files} files of {size_bytes} bytes, --publish against --no-publish",
        ratio=spread(times.ratios("--publish", "--no-publish")),
        ratio_of_processor_time=spread(cpu),
        put_files_per_s=files / times.median("--publish"),
        put_without_files_per_s=files / times.median("--no-publish"),
        snapshot_s=spread(snapshots[1:]),
        snapshot_bytes_a_file=sizes[-1] / files,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=500_000)
    parser.add_argument("--sizes", default="8,4096", help="bytes of a file, in turn")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for size_bytes in map(int, options.sizes.split(",")):
        with scratch("publish") as folder:
            compare(options.files, size_bytes, options.rounds, folder)


if __name__ == "__main__":
    main()

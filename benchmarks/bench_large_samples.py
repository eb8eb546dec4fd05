"""Is a known order of large samples fetched ahead of its reader?

A file above 16 MiB is a chunk of its own, which is fetched and cached in blocks of 4 MiB. The disk
is made up: 150 MB/s, 8.3 ms a seek (`bench_plan`), so blocks come at 116 MB/s. The mount has memory
for two groups. The reader takes a file at a time, at 80 % of the rate of blocks. Expectation: the
next group is there when its turn comes, so no READ of the kernel waits for the disk but those of
the first file. Without a plan nearly all wait: the kernel asks for several at a time.

Reported: READs that took the mount longer than 1 ms, over all READs; with a plan, and without.

    python -m benchmarks.bench_large_samples                    # as root
    python -m benchmarks.bench_large_samples --files 8 --size-mib 20
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import mount_contenders as contenders
from benchmarks.bench_plan import BYTES_PER_S, SEEK_S, Packed, in_plan_order, mounted, packed
from benchmarks.mount_bars import REPORTED, Bar, Result, judge, show_table
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES

WAITS_BAR = Bar(most=0.02)
PACE = 0.8
BLOCK_RATE = CACHE_BLOCK_BYTES / (SEEK_S + CACHE_BLOCK_BYTES / BYTES_PER_S)
READ_BYTES = 1 << 20


def read_files(root: Path, paths: list[str], bytes_per_s: float) -> list[float]:
    """The seconds that each file takes; none is opened before its turn."""
    seconds, done, buffer = [], 0, bytearray(READ_BYTES)
    begin = time.monotonic()
    for path in paths:
        time.sleep(max(0.0, begin + done / bytes_per_s - time.monotonic()))
        start = time.monotonic()
        with open(root / path, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                done += got
        seconds.append(time.monotonic() - start)
    return seconds


def epoch(data: Packed, group: int, front: str, known: bool) -> tuple[float, dict[str, Any]]:
    """The part of the READs of an epoch that wait, and figures beside it."""
    memory = 2 * group * data.size_bytes
    options = ["--memory", str(memory), "--front", front]
    with mounted(data, None, *options, *(["--group", str(group)] if known else [])) as root:
        contenders.list_all(root)
        if known:
            paths = in_plan_order(data, root, group).read_text().splitlines()
        else:
            paths = [os.fspath(path.relative_to(root)) for path in root.glob("class*/*")]
            random.Random(7).shuffle(paths)
        time.sleep(memory / BLOCK_RATE)  # the first groups, which a training also waits for
        before = contenders.statistics(root)
        seconds = read_files(root, paths, PACE * BLOCK_RATE)
        after = contenders.statistics(root)
    reads = contenders.read_requests(after) - contenders.read_requests(before)
    waits = after["waits_over_1_ms"] - before["waits_over_1_ms"]
    contenders.say(f"  known={known}: {waits} of {reads} READs, {after['plan']}")
    return waits / reads, {
        "reads": reads,
        "longest_file_s": max(seconds),
        "median_file_s": sorted(seconds)[len(seconds) // 2],
    }


def measure(data: Packed, options: argparse.Namespace) -> list[Result]:
    found = []
    for known, bar in ((True, WAITS_BAR), (False, REPORTED)):
        rounds = [epoch(data, options.group, options.front, known) for _ in range(options.rounds)]
        question = (
            f"slow disk, {data.files} files of {data.size_bytes >> 20} MiB, memory for two groups "
            f"of {options.group}, {options.front}, reader at {PACE:.0%} of the disk's rate, order "
            f"{'known' if known else 'unknown'}: READs waited for"
        )
        found.append(judge(question, [waits for waits, _ in rounds], bar, **rounds[-1][1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--size-mib", type=int, default=64, help="of a file: above 16")
    parser.add_argument("--group", type=int, default=1, help="chunks, each of one file")
    parser.add_argument("--front", default="erofs", help="as of dlcmd mount")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.files, options.size_mib, options.rounds = 4, 20, 1
    if os.geteuid() != 0:
        sys.exit("bench_large_samples mounts EROFS: run it as root")
    with packed(options.files, options.size_mib << 20) as data:
        show_table(measure(data, options))


if __name__ == "__main__":
    main()

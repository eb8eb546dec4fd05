"""How much of its remote IO does a job of three nodes use?

Three processes read the chunks of one job in step, as nodes of a training do: 8, 1 and 1 chunks a
step. Their job has b bytes a second. Expectation: divided equally, the first one holds up the
others, and 0.333 b / 0.8 = 0.42 b are used. Divided by need, at least 0.95 b, and in no 10 s more
than 1.05 b: the buckets' bursts are 0.25 b and a chunk a reader. Readers on their own, that want
0.8 b, 0.1 b and 0.1 b, use 0.53 b with equal shares, and all of it by need.
"""

from __future__ import annotations

import time

from benchmarks.allocated_reader import CHUNK_BYTES, ReaderKind, reader_processes
from benchmarks.allocation_figures import left_of, most_in
from benchmarks.allocator_process import scratch_redis
from benchmarks.harness import report_with_bars
from dieselfs.allocation.directory.redis_directory import RedisDirectory

RATE = 100e6
WEIGHTS = (8, 1, 1)
WARM_UP_S = 20.0
WINDOW_S = 10.0
BARS = {
    "used_share": ">= 0.95 (equal division: 0.42 in step, else 0.53)",
    "most_of_10_s": "<= 1.05",
    "read_errors": "0",
}


def share(seconds: float, *, equally: bool, in_step: bool, threads: int = 1) -> None:
    fixed = RATE / len(WEIGHTS) if equally else None
    kinds = [
        ReaderKind(
            "training",
            weight * threads,
            in_step=True,
            fixed_bytes_per_s=fixed,
            chunk_bytes=CHUNK_BYTES // threads,
            threads=threads,
        )
        if in_step
        else ReaderKind(
            "training",
            speed_bytes_per_s=RATE * weight / sum(WEIGHTS),
            fixed_bytes_per_s=fixed,
        )
        for weight in WEIGHTS
    ]
    warm_up_s = min(WARM_UP_S, 2 * seconds)
    with scratch_redis() as server:
        directory = RedisDirectory(server.url)
        directory.allocate_remote_io("training", RATE, origin="hand")
        with reader_processes(server.url, kinds) as readers:
            began = time.monotonic()
            time.sleep(warm_up_s + seconds)
            ended = time.monotonic()
        directory.close()
    left = left_of(readers, began + warm_up_s, ended)
    report_with_bars(
        BARS,
        "how much of its remote IO does a job of three nodes use",
        division="equal" if equally else "by need",
        readers="in step" if in_step else "each on its own",
        threads=threads,
        seconds=seconds,
        used_share=sum(size for _, size in left) / (ended - began - warm_up_s) / RATE,
        most_of_10_s=most_in(left_of(readers, began + 5, ended), WINDOW_S) / WINDOW_S / RATE,
        read_errors=sum(each.noted.errors for each in readers),
    )

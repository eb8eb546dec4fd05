"""How fast is a scrub, next to what the store delivers and what one core can hash?

Cold: the pages of the chunk objects are dropped before each contender (posix_fadvise, of these
files alone). `cat` of all chunk objects is the store's sequential rate; hashing the same files, one
after the other, from memory is one core's. Whichever is lower is the bar, and a scrub should reach
0.8 of it. Expectation: for a chunk of 4 MiB of 4 KiB files 1.0 ms to decode and check the head, 0.9
ms to hash; a disk of 1 GB/s takes 4 ms for it, so that the scrub is as fast as the disk; from
memory it would reach half of what one core hashes.

    python -m benchmarks.bench_scrub [--megabytes 1000] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from benchmarks.harness import report, run_rounds, scratch, spread, sync
from chunkstore.chunk_format import KIND_FILE, decode_head
from dieselfs.assembly import open_index, open_store
from dieselfs.checking import Verdict, scrub
from dieselfs.checking.scrub import JOBS
from dieselfs.client import Client

SIZES_BYTES = (4096, 110 << 10)
NAME = "bench"


def pack(folder: Path, files: int, size_bytes: int) -> None:
    content = random.Random(1).randbytes(size_bytes + files)
    (folder / "store").mkdir()
    store, index = open_store(f"file://{folder}/store"), open_index(f"lmdb://{folder}/index")
    with Client.connect(
        NAME, store=store, index=index, snapshot_folder=folder / "snapshots", create=True
    ) as client:
        for number in range(files):
            path = f"class{number % 100:04d}/image{number:07d}.jpg"
            client.put(content[number : number + size_bytes], path)
    index.close()
    sync(folder)


def chunk_files(folder: Path) -> list[Path]:
    """In the order of ids, as a scrub reads them."""
    found = (folder / f"store/datasets/{NAME}/chunks").glob("*/*")
    return sorted(found, key=lambda path: path.name)


def drop(paths: list[Path]) -> None:
    """Out of the page cache with these files, and no others."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reading(paths: list[Path]) -> Callable[[], float]:
    def read() -> float:
        drop(paths)
        begin = time.perf_counter()
        for at in range(0, len(paths), 1000):
            command = ["cat", *map(str, paths[at : at + 1000])]
            with open("/dev/null", "wb") as nowhere:
                subprocess.run(command, stdout=nowhere, check=True)
        return time.perf_counter() - begin

    return read


def hashing(paths: list[Path]) -> Callable[[], float]:
    """Only the hashing is timed: of every file, from memory, in one thread."""

    def hash_all() -> float:
        elapsed, digest = 0.0, xxhash.xxh3_64_intdigest
        for path in paths:
            data = path.read_bytes()
            head = decode_head(data)
            entries, payload = head.entries, memoryview(data)[head.head_bytes :]
            files = entries.kind == KIND_FILE
            extents = list(
                zip(entries.offset[files].tolist(), entries.length[files].tolist(), strict=True)
            )
            begin = time.perf_counter()
            for offset, length in extents:
                digest(payload[offset : offset + length])
            elapsed += time.perf_counter() - begin
        return elapsed

    return hash_all


def scrubbing(
    folder: Path, paths: list[Path], jobs: int, cpu_seconds: list[float]
) -> Callable[[], float]:
    """What it takes of all cores goes to `cpu_seconds`: that says more than the rate on a machine
    with other work to do."""

    def run() -> float:
        drop(paths)
        store, index = open_store(f"file://{folder}/store"), open_index(f"lmdb://{folder}/index")
        begin, busy = time.perf_counter(), time.process_time()
        found = scrub(store, index, NAME, jobs=jobs, progress_folder=folder / "progress")
        elapsed = time.perf_counter() - begin
        cpu_seconds.append(time.process_time() - busy)
        index.close()
        assert found.verdict is Verdict.CLEAN
        return elapsed

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--quick", action="store_true", help="32 MB, one round")
    options = parser.parse_args()
    megabytes, rounds = (32, 1) if options.quick else (options.megabytes, options.rounds)
    for size_bytes in SIZES_BYTES:
        with scratch("scrub") as folder:
            pack(folder, megabytes * 1_000_000 // size_bytes, size_bytes)
            paths = chunk_files(folder)
            total = sum(path.stat().st_size for path in paths)
            cpu_seconds: list[float] = []
            times = run_rounds(
                {
                    "cat": reading(paths),
                    "hash": hashing(paths),
                    "scrub": scrubbing(folder, paths, options.jobs, cpu_seconds),
                },
                rounds,
            )
        seconds = times.seconds
        bars = [max(pair) for pair in zip(seconds["cat"], seconds["hash"], strict=True)]
        report(
            f"scrub of {total:,} bytes in files of {size_bytes} bytes, cold, next to reading and hashing",
            ratio_to_the_bar=spread(
                [bar / own for bar, own in zip(bars, seconds["scrub"], strict=True)]
            ),
            bytes_per_cpu_s=total / statistics.median(cpu_seconds),
            bytes_per_s={name: total / times.median(name) for name in seconds},
            bar="reading" if times.median("cat") > times.median("hash") else "hashing",
        )


if __name__ == "__main__":
    sys.exit(main())

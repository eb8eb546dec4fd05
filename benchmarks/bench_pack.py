"""How fast does one process pack files from memory, every commit durable?

`Client.put` of 4 KiB buffers into a local directory (fsync of chunks and commit objects) with the
LMDB index (synced transactions) or a Redis on loopback, against `dd conv=fsync` of the same bytes.
Expectation: about 4 µs of packing and 4 µs of indexing a file on one GIL, the rest in system calls
on the other core: 100,000 files/s (the paper's two million came from 64 processes, 31,000 each).

    python -m benchmarks.bench_pack [--files 200000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import empty, report, run_rounds, scratch, spread
from benchmarks.redis_server import redis_server
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client

SIZE_BYTES = 4096


def packer(files: int, folder: Path, index_url: str) -> Callable[[], float]:
    content = random.Random(1).randbytes(SIZE_BYTES + files)
    buffers = [content[number : number + SIZE_BYTES] for number in range(files)]
    paths = [f"class{number % 100:04d}/image{number:07d}.jpg" for number in range(files)]
    lives = iter(range(1_000))

    def pack() -> float:
        empty(folder)
        (folder / "store").mkdir()
        store, index = open_store(f"file://{folder}/store"), open_index(index_url)
        name = f"bench{next(lives)}"
        begin = time.perf_counter()
        with Client.connect(
            name, store=store, index=index, snapshot_folder=folder / "snapshots", create=True
        ) as client:
            for data, path in zip(buffers, paths, strict=True):
                client.put(data, path)
        elapsed = time.perf_counter() - begin
        with Client.connect(
            name, store=store, index=index, snapshot_folder=folder / "snapshots"
        ) as client:
            assert client.dataset.namespace.state().files == files
            client.delete_dataset()
        index.close()
        return elapsed

    return pack


def disk_writer(files: int, folder: Path) -> Callable[[], float]:
    def write() -> float:
        empty(folder)
        count = files * SIZE_BYTES >> 20
        command = ["dd", "if=/dev/urandom", f"of={folder}/source", "bs=1M", f"count={count}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        begin = time.perf_counter()
        command = ["dd", f"if={folder}/source", f"of={folder}/target", "bs=4M", "conv=fsync"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin

    return write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    files = options.files
    with scratch("pack") as folder, redis_server(folder / "redis") as redis_url:
        contenders = {
            "lmdb": packer(files, folder / "lmdb", f"lmdb://{folder}/index"),
            "redis": packer(files, folder / "redis-store", redis_url),
            "dd": disk_writer(files, folder / "dd"),
        }
        times = run_rounds(contenders, options.rounds)
    for index in ("lmdb", "redis"):
        report(
            f"{files} files of {SIZE_BYTES} bytes packed from memory by one process, {index} index",
            files_per_s={
                "median": files / times.median(index),
                "best": files / min(times.seconds[index]),
            },
            ratio_to_dd=spread(times.ratios(index, "dd")),
        )


if __name__ == "__main__":
    sys.exit(main())

"""How fast do 1, 2 and 4 clients write small files at once (DIESEL Fig. 9)?

Each client is a process that puts files from its memory into one dataset by `Client.put`, with the
index in Redis and in Redis Cluster, until all is durable. Beside it, in the same rounds, as many
processes `set` the same files in memcached (nothing durable), and write them into one shared
directory and sync it.

Expectation for 4 KiB: a file costs a packer 10 us of one core, so 80,000 a second, and on two cores
with the Redis 100,000. A `set` takes 10 to 20 us on loopback, and in the paper a proxy and a
network too: 1 times memcached rather than 1.8. A file in a directory costs ext4 20 us and its sync.
128 KiB: memcached copies a file four times, a packer hashes and writes it, and the disk decides.

    python -m benchmarks.bench_writers [--files 40000] [--clients 1,2,4] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from benchmarks.contender_process import ContenderPlan, ContenderProcess, contenders, run_together
from benchmarks.harness import report, run_rounds, scratch, spread, sync
from benchmarks.memcached_server import memcached_client, memcached_servers
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from tests.services.redis_processes import RedisCluster, RedisProcess

SIZES = {4 << 10: 1, 128 << 10: 20}
"""The bytes of a file, and the divisor of the number of files."""
MEMCACHED = "memcached set"
DIRECTORY = "shared directory"
PAPER = {
    4 << 10: {MEMCACHED: 1.79, DIRECTORY: 366.7},
    128 << 10: {MEMCACHED: 17.3, DIRECTORY: 127.3},
}
"""Times the rates of memcached and Lustre, 64 processes on 4 nodes."""


class Writer(Protocol):
    """One of several processes that write at the same time."""

    def run(self, name: str, rank: int, files: int, size_bytes: int) -> float:
        """Seconds in which it writes `files` files below `name`."""
        ...

    def close(self) -> None: ...


def content(rank: int, files: int, size_bytes: int) -> list[tuple[str, bytes]]:
    """Paths and bytes, in memory before the clock starts."""
    data = random.Random(rank).randbytes(size_bytes + files)
    return [
        (f"class{number % 100:04d}/{rank}-{number:07d}.jpg", data[number : number + size_bytes])
        for number in range(files)
    ]


class Packer:
    """The dataset exists already."""

    def __init__(self, folder: Path, index: str) -> None:
        self._folder, self._index = folder, index

    def run(self, name: str, rank: int, files: int, size_bytes: int) -> float:
        made = content(rank, files, size_bytes)
        index = open_index(self._index)
        store = open_store(f"file://{self._folder}/store")
        client = Client.connect(name, store=store, index=index, snapshot_folder=self._folder)
        begin = time.perf_counter()
        with client:
            for path, data in made:
                client.put(data, path)
        elapsed = time.perf_counter() - begin
        index.close()
        return elapsed

    def close(self) -> None:
        pass


class MemcachedWriter:
    def __init__(self, ports: Sequence[int]) -> None:
        self._client = memcached_client(ports)

    def run(self, name: str, rank: int, files: int, size_bytes: int) -> float:
        made = content(rank, files, size_bytes)
        begin = time.perf_counter()
        for path, data in made:
            if not self._client.set(path, data):
                raise RuntimeError(f"memcached does not take {path}")
        return time.perf_counter() - begin

    def close(self) -> None:
        self._client.disconnect_all()


class DirectoryWriter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str, rank: int, files: int, size_bytes: int) -> float:
        made = content(rank, files, size_bytes)
        root = self._folder / name
        begin = time.perf_counter()
        for folder in {os.path.dirname(path) for path, _ in made}:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path, data in made:
            fd = os.open(f"{root}/{path}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            os.write(fd, data)
            os.close(fd)
        sync(self._folder)
        return time.perf_counter() - begin

    def close(self) -> None:
        pass


class Datasets:
    """The datasets that packers write, one a run, over one store."""

    def __init__(self, folder: Path, index: str) -> None:
        self._folder, self._index = folder, index
        (folder / "store").mkdir(parents=True)

    def make(self, name: str) -> None:
        self._connect(name, create=True).close()

    def remove(self, name: str, files: int) -> None:
        """Remove the dataset `name`, which must have all its files."""
        client = self._connect(name)
        with client:
            found = client.dataset.namespace.state().files
            if found != files:
                raise RuntimeError(f"{found} of {files} files are in {name}")
            client.delete_dataset()

    def _connect(self, name: str, *, create: bool = False) -> Client:
        return Client.connect(
            name,
            store=open_store(f"file://{self._folder}/store"),
            index=open_index(self._index),
            snapshot_folder=self._folder,
            create=create,
        )


def compare(
    folder: Path,
    indexes: dict[str, str],
    files: int,
    size_bytes: int,
    counts: Sequence[int],
    rounds: int,
) -> None:
    memory_mib = 2 * files * size_bytes // (1 << 20) + 256
    names = (f"bench{number}" for number in itertools.count())
    with ExitStack() as stack:
        [server] = stack.enter_context(memcached_servers(1, memory_mib))
        made = {name: Datasets(folder / name.replace(" ", "-"), indexes[name]) for name in indexes}
        plans = {
            **{
                name: ContenderPlan(Packer, (folder / name.replace(" ", "-"), index))
                for name, index in indexes.items()
            },
            MEMCACHED: ContenderPlan(MemcachedWriter, ([server.port],)),
            DIRECTORY: ContenderPlan(DirectoryWriter, (folder / "directory",)),
        }
        (folder / "directory").mkdir()
        writers = {
            name: stack.enter_context(contenders([plan] * max(counts)))
            for name, plan in plans.items()
        }

        def write(kind: str, count: int) -> float:
            name = next(names)
            sync(folder)
            if kind in made:
                made[kind].make(name)
            elapsed = write_together(writers[kind][:count], name, files, size_bytes)
            if kind in made:
                made[kind].remove(name, files // count * count)
            shutil.rmtree(folder / "directory" / name, ignore_errors=True)
            return elapsed

        turns: dict[str, Callable[[], float]] = {
            f"{kind}, {count}": lambda kind=kind, count=count: write(kind, count)  # type: ignore[misc]
            for count in counts
            for kind in writers
        }
        taken = run_rounds(turns, rounds)
    for count in counts:
        for kind in indexes:
            report(
                f"{count} clients write files of {size_bytes >> 10} KiB, index in {kind}",
                ratio={
                    other: spread(taken.ratios(f"{kind}, {count}", f"{other}, {count}"))
                    for other in (MEMCACHED, DIRECTORY)
                },
                paper=PAPER[size_bytes],
                files_per_s={
                    name: files / taken.median(f"{name}, {count}")
                    for name in (kind, MEMCACHED, DIRECTORY)
                },
            )


def write_together(
    writers: Sequence[ContenderProcess], name: str, files: int, size_bytes: int
) -> float:
    """Seconds in which the processes write `files` between them: those of the slowest."""
    each = files // len(writers)
    return float(
        max(run_together(writers, [(name, rank, each, size_bytes) for rank in range(len(writers))]))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=40_000, help="of 4 KiB, of all clients")
    parser.add_argument("--clients", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.files, options.clients, options.rounds = 2_000, "1,2", 1
    counts = [int(count) for count in options.clients.split(",")]
    with scratch("writers") as folder, ExitStack() as stack:
        server = stack.enter_context(RedisProcess(folder / "server"))
        cluster = stack.enter_context(RedisCluster(folder / "cluster"))
        indexes = {"Redis": server.url, "Redis Cluster": cluster.url}
        for size_bytes, divisor in SIZES.items():
            (folder / str(size_bytes)).mkdir()
            compare(
                *(folder / str(size_bytes), indexes, options.files // divisor, size_bytes),
                *(counts, options.rounds),
            )


if __name__ == "__main__":
    main()

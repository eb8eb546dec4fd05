"""How fast is reading whole files through the client: from node memory, and in an epoch with every
cache cold?

warm: 4 KiB files in random order, one process, the dataset in node memory; beside it py-lmdb used
as a dataset (one open transaction, `get(path)` to bytes, readahead off), over the same paths and
bytes, in the same rounds. `get_many` takes 256 at a time, by sample index and by path, and keeps
them until the next; so does a second LMDB contender, for comparison. Times are the process's own,
of all its threads. Expectation: 4 KiB from memory that is in no cache of the processor take 0.45 µs
to copy; LMDB walks 3 levels of a tree before that (1.2 µs in all, and 0.1 to encode the path). By
index we read three numbers instead: 0.65 µs, 2×. By path we encode, hash, probe and compare names,
which is memory waited for as in LMDB's tree: 0.5 µs more, 1×; of 256 at once, whose waits overlap,
0.3 µs more, 1.4×.

cold: one epoch in chunk-wise order through the client, from a local directory store, against
`open().read()` of the files in random order, caches dropped before each
(`/proc/sys/vm/drop_caches`: needs root); source, store and snapshot on one disk. Node memory is
empty at the start, its master runs; `with start` includes connecting to the dataset and starting
the master. Its *classes per batch* are the mean number of distinct class folders in 256 consecutive
samples. Expectation: a cold open and read of 4 KiB are some 2 random reads of the disk (100 µs each
on this kind of virtual disk), while 1,024 files in a chunk are one: more than 6× for 4 KiB; of 110
KiB the disk's bandwidth takes a good part, 2×.

    python -m benchmarks.bench_client [warm] [cold] [--files 50000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import secrets
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from benchmarks.harness import dlcmd, make_tree, report, run_rounds, scratch, sync
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.client import Client
from metadata.kv.lmdb_file import LmdbFileStore

FOLDERS = 100
BATCH = 256
KIB = 1024
COLD_SIZES = {4 * KIB: 1, 110 * KIB: 5}
"""Size of a file, and by what the number of files is divided."""


class Packed:
    """A tree of files, packed by `dlcmd put`, with a snapshot."""

    def __init__(self, folder: Path, files: int, size_bytes: int) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        self.size_bytes = size_bytes
        make_tree(self.tree, files, FOLDERS, size_bytes)
        self.paths = sorted(
            f"{directory.name}/{file.name}"
            for directory in os.scandir(self.tree)
            for file in os.scandir(directory)
        )
        dlcmd("put", f"{self.tree}/", "dl://data/", folder=folder)
        with self.connected() as client:
            self.snapshot = client.save_meta()
        sync(folder)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        index = LmdbFileStore(self.folder / "index")
        try:
            with Client.connect(
                "data",
                store=LocalDirectory(self.folder / "store"),
                index=index,
                snapshot_folder=self.folder / "snapshots",
                create=False,
            ) as client:
                yield client
        finally:
            index.close()

    @contextmanager
    def reading(self) -> Iterator[Client]:
        """A client with empty node memory for all of it."""
        with self.connected() as client:
            client.load_meta(self.snapshot)
            client.open_memory(self.total_bytes * 5 // 4, task=f"bench-{secrets.token_hex(4)}")
            yield client

    @property
    def total_bytes(self) -> int:
        return len(self.paths) * self.size_bytes


def make_lmdb(packed: Packed, path: Path) -> None:
    with lmdb.open(str(path), subdir=False, map_size=1 << 36, sync=False) as environment:
        with environment.begin(write=True) as transaction:
            for name in packed.paths:
                transaction.put(name.encode(), (packed.tree / name).read_bytes(), append=True)


def batches(items: list[str] | list[int]) -> Iterator[list[str] | list[int]]:
    return (items[at : at + BATCH] for at in range(0, len(items), BATCH))


def warm_contenders(
    client: Client, transaction: lmdb.Transaction, paths: list[str], inodes: list[int]
) -> dict[str, Callable[[], None]]:
    def by_path() -> None:
        get = client.get
        for path in paths:
            get(path)

    def by_index() -> None:
        read = client.samples.read
        for inode in inodes:
            read(inode)

    def many(items: list[str] | list[int]) -> None:
        for batch in batches(items):
            client.get_many(batch)

    def lmdb_one() -> None:
        get = transaction.get
        for path in paths:
            get(path.encode())

    def lmdb_many() -> None:
        get = transaction.get
        for batch in batches(paths):
            [get(path.encode()) for path in batch]  # type: ignore[union-attr]

    return {
        "lmdb": lmdb_one,
        "by path": by_path,
        "by index": by_index,
        "get_many by index": lambda: many(inodes),
        "get_many by path": lambda: many(paths),
        "lmdb kept 256": lmdb_many,
    }


def in_processor_seconds(run: Callable[[], None]) -> Callable[[], float]:
    """What one process that never waits takes, however many others share the machine."""

    def timed() -> float:
        begin = time.process_time()
        run()
        return time.process_time() - begin

    return timed


def check(client: Client, transaction: lmdb.Transaction, paths: list[str]) -> None:
    for path in paths:
        if client.get(path) != transaction.get(path.encode()):
            raise RuntimeError(f"{path} differs")


def warm(folder: Path, files: int, rounds: int) -> None:
    packed = Packed(folder, files, 4 * KIB)
    make_lmdb(packed, folder / "data.lmdb")
    environment = lmdb.open(
        str(folder / "data.lmdb"), subdir=False, readonly=True, lock=False, readahead=False
    )
    paths = random.Random(1).sample(packed.paths, len(packed.paths))
    with packed.reading() as client, environment.begin() as transaction:
        check(client, transaction, paths)
        inodes = [client.inode(path) for path in paths]
        contenders = warm_contenders(client, transaction, paths, inodes)
        gc.disable()
        times = run_rounds(
            {name: in_processor_seconds(run) for name, run in contenders.items()}, rounds
        )
        gc.enable()
    environment.close()
    report(
        "4 KiB file reads from node memory against py-lmdb",
        files=len(paths),
        ns_a_read={name: times.median(name) / len(paths) * 1e9 for name in contenders},
        times_lmdb={name: statistics.median(times.ratios(name, "lmdb")) for name in contenders},
        spread={name: [min(r), max(r)] for name in contenders if (r := times.ratios(name, "lmdb"))},
        bars={"by path": 0.65, "by index": 1.0, "get_many": 1.2},
    )


def drop_caches() -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def classes_per_batch_of(paths: list[str]) -> float:
    """Mean number of distinct folders in 256 consecutive samples."""
    folders = [path.partition("/")[0] for path in paths]
    windows = range(0, len(folders) - BATCH + 1, BATCH)
    return statistics.mean(len(set(folders[at : at + BATCH])) for at in windows)


def cold(folder: Path, files: int, size_bytes: int, rounds: int) -> None:
    packed = Packed(folder, files, size_bytes)
    classes_per_batch: list[float] = []

    def plain() -> float:
        order = random.sample(packed.paths, len(packed.paths))
        drop_caches()
        begin = time.perf_counter()
        for path in order:
            with open(packed.tree / path, "rb") as file:
                file.read()
        return time.perf_counter() - begin

    def through_client() -> float:
        seed = random.getrandbits(32)
        with packed.reading() as client:
            drop_caches()
            begin = time.perf_counter()
            order = client.shuffle(seed=seed)
            read_all(client, order)
            elapsed = time.perf_counter() - begin
        classes_per_batch.append(classes_per_batch_of(order))
        return elapsed

    def from_the_start() -> float:
        drop_caches()
        begin = time.perf_counter()
        with packed.reading() as client:
            read_all(client, client.shuffle())
            return time.perf_counter() - begin

    def read_all(client: Client, order: list[str]) -> None:
        read = sum(len(client.get(path)) for path in order)
        if read != packed.total_bytes:
            raise RuntimeError(f"{read} bytes instead of {packed.total_bytes}")

    contenders = {"plain": plain, "client": through_client, "client, with start": from_the_start}
    times = run_rounds(contenders, rounds, warm_up=0)
    report(
        f"one cold epoch of files of {size_bytes // KIB} KiB, client in chunk-wise order against plain reading in random order",
        files=len(packed.paths),
        bytes=packed.total_bytes,
        classes_per_batch=statistics.mean(classes_per_batch),
        seconds={name: times.median(name) for name in contenders},
        files_per_s={name: len(packed.paths) / times.median(name) for name in contenders},
        times_plain={name: statistics.median(times.ratios(name, "plain")) for name in contenders},
        bar=6.0 if size_bytes == 4 * KIB else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", choices=["warm", "cold", []], default=[])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sections = options.sections or ["warm", "cold"]
    if "warm" in sections:
        with scratch("client") as folder:
            warm(folder, options.files, options.rounds)
    if "cold" in sections:
        for size_bytes, divisor in COLD_SIZES.items():
            with scratch("client") as folder:
                cold(folder, options.files // divisor, size_bytes, max(2, options.rounds // 2))


if __name__ == "__main__":
    main()

"""How fast is an index of 1,280,000 files rebuilt from the store alone, in how much memory, from
how many bytes?

1,280,000 names like `n01440764/n01440764_10026.JPEG` in 1,000 folders, dealt at random to chunks of
1,024, 16 chunks a commit; the chunks are heads without payloads, since a rebuild reads nothing
else. Expectation: 72 bytes of head a file are decoded and checked in 0.4 µs, columns and dealing
take 0.5, sorting and finding what stands 1, the checksum of a record 0.2 and LMDB 1 µs: some
300,000 files/s of one processor. Redis compares stamps in a script, 5 µs a record in the server.
Memory is bounded by parts of 65,536 files whatever the dataset, 100 to 200 MB; without parts it
would be 1 GB. Beside it, in the same rounds: reading the same bytes, and nothing more.

    python -m benchmarks.bench_recovery [--files 1280000] [--rounds 3] [--no-redis]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness import REPOSITORY, empty, report, run_rounds, scratch, spread
from benchmarks.redis_server import redis_server
from chunkstore.chunk_format import KIND_FILE, DatasetRef, Entries, encode_head
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit, CommitLog, create_dataset, find_dataset
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.redis_server import RedisServerStore
from metadata.rebuild import rebuild
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex

NAME = "imagenet"
FILES_A_CHUNK = 1024
CHUNKS_A_COMMIT = 16
FILE_BYTES = 4096
FOLDERS = 1000


class CountedDirectory(LocalDirectory):
    """Counts the bytes read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bytes_read = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        return self._counted(super().get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._counted(super().get_range(key, offset, length))

    def _counted(self, data: bytes) -> bytes:
        with self._lock:
            self.bytes_read += len(data)
        return data


def make_store(root: Path, files: int) -> int:
    """A dataset of `files` files without content; the bytes of its heads and commits."""
    store = LocalDirectory(root)
    dataset, _ = create_dataset(store, NAME)
    log, ids = CommitLog(store, dataset), ChunkIdGenerator()
    folders = min(FOLDERS, files)
    place = np.random.default_rng(1).permutation(files)
    total, generation = len(log.read(1).encode()), 1
    refs: list[ChunkRef] = []
    for start in range(0, files, FILES_A_CHUNK):
        numbers = place[start : start + FILES_A_CHUNK]
        paths = [
            b"n%08d/n%08d_%d.JPEG"
            % (1_440_764 + number % folders, 1_440_764 + number % folders, number)
            for number in numbers.tolist()
        ]
        chunk_id = ids.next()
        head = encode_head(chunk_id, dataset, FILE_BYTES * len(paths), _entries(paths))
        store.create(chunk_key(NAME, chunk_id), [head])
        refs.append(ChunkRef(chunk_id, len(head), FILE_BYTES * len(paths)))
        total += len(head)
        if len(refs) == CHUNKS_A_COMMIT or start + FILES_A_CHUNK >= files:
            commit = log.append(generation, refs)
            generation, refs = commit.generation, []
            total += len(commit.encode())
    return total


def _entries(paths: Sequence[bytes]) -> Entries:
    count = len(paths)
    return Entries(
        paths=paths,
        kind=np.full(count, KIND_FILE, np.uint8),
        mode=np.full(count, 0o100644, np.uint16),
        mtime_ns=np.full(count, 1_600_000_000_000_000_000, np.int64),
        offset=np.arange(count, dtype=np.uint64) * np.uint64(FILE_BYTES),
        length=np.full(count, FILE_BYTES, np.uint64),
        hash=np.random.default_rng(2).integers(0, 1 << 63, count, dtype=np.uint64),
        block_hash=np.zeros(0, np.uint64),
    )


def open_index(url: str) -> KeyValueStore:
    return RedisServerStore(url) if url.startswith("redis:") else LmdbFileStore(url)


def history(store: LocalDirectory) -> tuple[DatasetRef, list[Commit], ChunkReader]:
    dataset = find_dataset(store, NAME)
    assert dataset is not None
    return dataset, list(CommitLog(store, dataset).since(0)), ChunkReader(store, dataset)


@contextmanager
def anonymous_memory() -> Iterator[list[int]]:
    """The greatest RssAnon seen, in bytes: the peak of all that is resident also counts pages of
    LMDB's file, which are the page cache's."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], _status_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _status_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) << 10


def measure(root: Path, url: str) -> None:
    """One rebuild, in a process of its own; prints what it took."""
    store, index = CountedDirectory(root), open_index(url)
    before = _status_bytes("RssAnon")
    with anonymous_memory() as peak:
        begin, processor = time.perf_counter(), time.process_time()
        dataset, commits, reader = history(store)
        state = rebuild(
            dataset,
            commits,
            lambda ref: reader.head(ref.id, ref.head_bytes),
            EmptyIndex(index),
            spill_folder=root.parent,
        )
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    index.close()
    print(
        json.dumps(
            {
                "files": state.files,
                "seconds": seconds,
                "processor_s": processor,
                "bytes_read": store.bytes_read,
                "memory_bytes": peak[0] - before,
                "rss_bytes": _status_bytes("VmHWM"),
            }
        )
    )


def measured(root: Path, url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_recovery", "--measure", str(root), url]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ).stdout
    found: dict[str, float] = json.loads(done)
    return found


def read_all(root: Path) -> float:
    """The plain reading of the same bytes, in the order of names; seconds."""
    store = LocalDirectory(root)
    begin = time.perf_counter()
    for commit in history(store)[1]:
        for ref in commit.added:
            store.get_range(chunk_key(NAME, ref.id), 0, ref.head_bytes)
    return time.perf_counter() - begin


def check(root: Path, url: str) -> None:
    """The index is what a second rebuild says."""
    index = open_index(url)
    dataset, commits, reader = history(LocalDirectory(root))
    compared = ComparedIndex(index)
    rebuild(dataset, commits, lambda ref: reader.head(ref.id, ref.head_bytes), compared)
    index.close()
    assert compared.is_equal, compared.counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-redis", action="store_true", help="LMDB alone")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(Path(options.measure[0]), options.measure[1])
        return
    with scratch("recovery") as folder:
        root = folder / "store"
        needed = make_store(root, options.files)
        compare("LMDB", root, str(folder / "index"), options, needed)
        if not options.no_redis:
            with redis_server(folder / "redis") as url:
                compare("Redis", root, url, options, needed)


def compare(name: str, root: Path, url: str, options: argparse.Namespace, needed: int) -> None:
    batches: list[dict[str, float]] = []

    def clean() -> float:
        if name == "Redis":
            subprocess.run(
                ["redis-cli", "-u", url, "flushall"], check=True, stdout=subprocess.DEVNULL
            )
        else:
            empty(Path(url))
        return 0.0

    def rebuilt() -> float:
        batches.append(measured(root, url))
        return batches[-1]["seconds"]

    contenders = {"clean": clean, "rebuild": rebuilt, "plain reading": lambda: read_all(root)}
    times = run_rounds(contenders, options.rounds)
    check(root, url)
    batches = batches[1:]  # the first is the warm-up
    report(
        f"an index of {options.files} files rebuilt from a local store into {name}",
        files_per_s=options.files / times.median("rebuild"),
        files_per_processor_s=options.files
        / statistics.median(run["processor_s"] for run in batches),
        bytes_read_to_heads_and_commits=max(run["bytes_read"] for run in batches) / needed,
        memory_mb=max(run["memory_bytes"] for run in batches) / 1e6,
        rss_mb=max(run["rss_bytes"] for run in batches) / 1e6,
        ratio_to_plain_reading=spread(times.ratios("rebuild", "plain reading")),
    )


if __name__ == "__main__":
    main()

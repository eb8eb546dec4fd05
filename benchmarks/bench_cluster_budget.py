"""Does a job draw its budget from the store through a cache cluster, and do the nodes keep a
dataset's quota together?

Three cache nodes (`dlcmd serve`) on loopback over a store without a limit of its own. One job with
a remote IO reads chunks of 4 MiB in random order, each once an epoch, with four threads. Its
dataset has a quota of a quarter of its bytes. The store counts what leaves it, and the nodes say
ten times a second what they cache.

Expectation: the budget is corrected by what each answer says was fetched, so the store gives the
remote IO within 3 %, and the job reads 1 / (1 - c/d) times as much once c is cached. The nodes
admit nothing beyond their parts, so the sum of what they cache never exceeds the quota, whose
regions of 4 MiB it fills but for a region a node and what does not fit into regions.

    python -m benchmarks.bench_cluster_budget [--seconds 60] [--rates 1MB/s,10MB/s,40MB/s]
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import report_with_bars, scratch
from benchmarks.shared_slow_store import SharedSlowStore, state_of
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.job_table import byte_rate
from tests.dieselfs.cache.cluster.cluster_of_nodes import (
    JobReader,
    NodeProcess,
    kept_quotas,
    ring_of,
)
from tests.eventually import eventually
from tests.own_node_memory import own_node_memory
from tests.peers.task_nodes import PeerDataset, make_dataset

MIB = 1 << 20
NODES, THREADS = 3, 4
FILES, FILE_BYTES, CHUNK_BYTES = 480, MIB - 4096, 4 * MIB
QUOTA_SHARE = 0.25
BARS = {"rate_error": "<= 0.03", "over_quota_bytes": "0"}


class EpochThreads:
    """Threads that read the chunks of epoch after epoch, until the end of a `with` block."""

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._order: Iterator[int] = self._epochs()
        self._lock, self._over = threading.Lock(), threading.Event()
        self.read_bytes = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(THREADS)]

    def __enter__(self) -> EpochThreads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._reader.allocation.release()
        for thread in self._threads:
            thread.join()

    def _epochs(self) -> Iterator[int]:
        draw, count = random.Random(1), len(self._reader.chunks)
        while True:
            yield from draw.sample(range(count), count)

    def _run(self) -> None:
        chunks = self._reader.chunks
        while not self._over.is_set():
            with self._lock:
                chunk = chunks[next(self._order)]
            size = sum(map(len, self._reader.source.whole(chunk)))
            with self._lock:
                self.read_bytes += size


def measure(
    directory: FolderDirectory,
    dataset: PeerDataset,
    nodes: Sequence[NodeProcess],
    rate: float,
    seconds: float,
) -> None:
    """Read for a time with this remote IO, and report it."""
    reader = JobReader(dataset, nodes, "job")
    of, size = reader.snapshot.dataset, reader.object_bytes
    quota = int(QUOTA_SHARE * size)
    directory.allocate_cache_size(of.name, of.id.hex(), quota, origin="hand")
    eventually(lambda: quota - NODES < kept_quotas(nodes) <= quota, "the nodes' parts")
    _fill(reader, quota)
    directory.allocate_remote_io("job", rate, origin="hand")
    reader.allocation.begin()
    eventually(lambda: reader.allocation.statistics().allowed_bytes_per_s == rate, "the remote IO")
    SharedSlowStore.make(dataset.disk)  # its account begins
    charged_before = reader.used_bytes
    most = least = reader.peers.cached_bytes()
    with EpochThreads(reader) as threads:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.1)
            cached = reader.peers.cached_bytes()
            most, least = max(most, cached), min(least, cached)
        disk, read_bytes = state_of(dataset.disk), threads.read_bytes
        charged = reader.used_bytes - charged_before
    chunk_bytes = size / len(reader.chunks)
    drawn = (disk.bytes - chunk_bytes) / (disk.last_read - disk.first_read)
    report_with_bars(
        BARS,
        "a budget behind a cache cluster",
        rate_bytes_per_s=rate,
        seconds=seconds,
        drawn_bytes_per_s=drawn,
        rate_error=abs(drawn / rate - 1),
        read_bytes_per_s=read_bytes / seconds,
        model_bytes_per_s=rate / (1 - least / size),
        charged_share=charged / disk.bytes,
        quota_bytes=quota,
        most_cached_bytes=most,
        least_cached_bytes=least,
        over_quota_bytes=max(0, most - quota),
    )
    directory.allocate_remote_io("job", None, origin="hand")
    reader.close()


def _fill(reader: JobReader, quota: int) -> None:
    """Read until the nodes cache nearly all of the quota that fits into their regions."""

    def is_full() -> bool:
        for chunk in reader.chunks:
            reader.source.whole(chunk)
        return reader.peers.cached_bytes() >= 0.7 * quota

    eventually(is_full, "the nodes cache what they may")


@contextmanager
def cluster() -> Iterator[tuple[FolderDirectory, PeerDataset, list[NodeProcess]]]:
    """Yield the allocation directory, the dataset and the nodes."""
    with (
        scratch("cluster-budget") as folder,
        own_node_memory(),
    ):
        dataset = make_dataset(Path(folder), FILES, FILE_BYTES, CHUNK_BYTES)
        directory = FolderDirectory()
        with ring_of(Path(folder) / "nodes", dataset, NODES, ssd_size="1GiB") as nodes:
            yield directory, dataset, nodes
        directory.close()


def main() -> None:
    """Measure each rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each rate")
    parser.add_argument("--rates", default="1MB/s,10MB/s,40MB/s")
    options = parser.parse_args()
    rates = [byte_rate("--rates", each) for each in options.rates.split(",")]
    with cluster() as (directory, dataset, nodes):
        for rate in rates:
            measure(directory, dataset, nodes, rate, options.seconds)


if __name__ == "__main__":
    main()

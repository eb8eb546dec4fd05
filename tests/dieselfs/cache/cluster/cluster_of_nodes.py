"""A cache cluster of real `dlcmd serve` processes on loopback, over a dataset on a disk that all of
them read and that counts what it is asked for."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.stores.budgeted import BudgetedStore
from dieselfs.allocation.readers.observed import CachedDataset
from dieselfs.allocation.readers.reader_allocation import AllocationSettings, ReaderAllocation
from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.peer_settings import RedisLeases, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot
from tests.eventually import eventually
from tests.forked_programs import FORKER, PATIENT, ForkedProgram
from tests.peers.task_nodes import DLCMD, PeerDataset
from tests.services.redis_processes import free_port
from tests.stopping import stop

SECRET: Final = "the secret of the cache cluster of a test"
START_S: Final = 60.0
"""Machines that run tests stall for many seconds."""


@dataclass(slots=True)
class NodeProcess:
    """One `dlcmd serve`; it may be ended and started again."""

    folder: Path
    disk: Path
    cache_cluster: str
    secret: str = SECRET
    index: str | None = None
    ssd_size: str = "256MiB"
    memory: str = "64MiB"
    flags: Sequence[str] = ()
    """Further flags of `dlcmd serve`."""
    port: int = field(default_factory=free_port)
    process: ForkedProgram | None = None

    @property
    def address(self) -> PeerAddress:
        return PeerAddress("127.0.0.1", self.port)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("DIESELFS_R")},
            "DIESELFS_CACHE_CLUSTER_SECRET": self.secret,
            "DIESELFS_STORE": f"disk://{self.disk}",
            "DIESELFS_INDEX": self.index or f"lmdb://{self.folder}/index",
            "DIESELFS_SNAPSHOTS": str(self.folder / "snapshots"),
            PATIENT: "1",
        }
        command = [sys.executable, str(DLCMD), "serve", "--cache-cluster", self.cache_cluster]
        command += ["--listen", str(self.address), "--ssd", str(self.folder / "ssd")]
        with (self.folder / "log").open("wb") as log, open(os.devnull) as nothing:
            self.process = FORKER.start(
                [*command, "--ssd-size", self.ssd_size, "--memory", self.memory, *self.flags],
                env=environment,
                stdin=nothing.fileno(),
                stdout=log.fileno(),
                stderr=log.fileno(),
            )

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return "ready: " in self.log

        eventually(is_ready, f"a cache node gets ready: {self.folder}")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        if number == signal.SIGSTOP:
            stop(self.process.pid)
        else:
            self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        return self.process.wait(START_S)


@contextmanager
def ring_of(
    folder: Path, dataset: PeerDataset, count: int, name: str = "r", **options: Any
) -> Iterator[list[NodeProcess]]:
    """Nodes that are ready; those added to the list are ended too."""
    folder.mkdir()
    nodes = [NodeProcess(folder / str(at), dataset.disk, name, **options) for at in range(count)]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_until_ready()
        yield nodes
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.end(signal.SIGKILL)


class RingClient:
    """Reads a dataset through a cache cluster, as a mount's master does: whole chunks, files, or
    many files."""

    def __init__(
        self,
        dataset: PeerDataset,
        nodes: Sequence[PeerAddress],
        name: str = "r",
        secret: str = SECRET,
        redis: str | None = None,
    ) -> None:
        listed = StaticPeers(tuple(nodes))
        self.settings = CacheClusterSettings(
            name, TaskSecret(secret.encode()), listed if redis is None else RedisLeases(redis)
        )
        self.snapshot = Snapshot.open(dataset.snapshot)
        reader = ChunkReader(
            SharedSlowStore(dataset.disk), self.snapshot.dataset, ExpectedFiles(self.snapshot)
        )
        self.source = PeerSource(reader, CacheClusterPeers(self.settings, reader.dataset))
        self.reader = reader

    @property
    def chunks(self) -> list[ChunkRef]:
        return [self.snapshot.chunk(at) for at in range(self.snapshot.chunk_count)]

    @property
    def files(self) -> list[FileExtent]:
        found = (self.snapshot.files_in_chunk(at) for at in range(self.snapshot.chunk_count))
        return [self.snapshot.extent(inode) for inodes in found for inode in inodes]

    @property
    def object_bytes(self) -> int:
        return sum(chunk.head_bytes + chunk.payload_bytes for chunk in self.chunks)

    def close(self) -> None:
        peers = self.source._peers
        peers.close()  # type: ignore[union-attr]
        self.snapshot.close()


class JobReader(RingClient):
    """Reads through the cluster for a job, as a mount does: budgets are asked of the directory."""

    def __init__(self, dataset: PeerDataset, nodes: Sequence[NodeProcess], job: str) -> None:
        super().__init__(dataset, [node.address for node in nodes])
        settings = AllocationSettings(job, f"lmdb://{dataset.disk}/no-index")
        self.allocation = ReaderAllocation(settings, self.snapshot.dataset)
        payer = self.allocation.payer
        expected = ExpectedFiles(self.snapshot)
        store = BudgetedStore(SharedSlowStore(dataset.disk), payer, expected.object_bytes)
        self.peers = CacheClusterPeers(self.settings, self.snapshot.dataset, None, payer)
        self.source = PeerSource(ChunkReader(store, self.snapshot.dataset, expected), self.peers)
        self.allocation.caches(CachedDataset(self.peers.cached_bytes))

    def read(self) -> None:
        for chunk in self.chunks:
            assert len(self.source.whole(chunk)[1]) == chunk.payload_bytes

    @property
    def used_bytes(self) -> int:
        return self.allocation.statistics().used_bytes

    def close(self) -> None:
        self.allocation.close()
        super().close()


def kept_quotas(nodes: Sequence[NodeProcess]) -> int:
    """The sum of the quotas that the nodes have written for their SSD tiers."""
    files = [node.folder / "ssd/allocated.json" for node in nodes]
    return sum(sum(json.loads(file.read_text()).values()) for file in files if file.exists())

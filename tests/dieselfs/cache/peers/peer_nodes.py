"""Nodes of a task as processes on this machine, each with a memory folder of its own; and what they
read of the store."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import xxhash

from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.membership import membership, redis_registry, view_file
from dieselfs.cache.membership.placement import reachable
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers import node_share, peer_cache
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.patience import be_patient
from tests.eventually import PATIENCE_S
from tests.services.redis_processes import free_port

DEADLINE_S: Final = PATIENCE_S
FILE_BYTES: Final = 4000
SPAWN: Final = multiprocessing.get_context("spawn")


class LoggedStore(ReadWrapper):
    """A directory of objects; each read adds a line to `log`. Pickles."""

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__(LocalDirectory(folder))
        self._folder, self._log = folder, log

    def __reduce__(self) -> tuple[type[LoggedStore], tuple[Path, Path]]:
        return type(self), (self._folder, self._log)

    def _read(self, read: Read) -> bytes:
        data = read.of(self._wrapped)
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, f"{read.key.rpartition('/')[2]} {len(data)}\n".encode())
        os.close(fd)
        return data


@dataclass(frozen=True, slots=True)
class SmallDataset:
    store: Path
    log: Path
    snapshot: Path
    chunks: int
    bytes: int
    """Of the files."""

    def reads(self) -> Counter[str]:
        """Of each chunk."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.split()[0] for line in lines)

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)


def make_dataset(folder: Path, files: int = 400, chunk_bytes: int = 64 << 10) -> SmallDataset:
    [made] = make_snapshots(folder, files, chunk_bytes=chunk_bytes)
    return made


def make_snapshots(
    folder: Path, *parts: int, large_bytes: int = 0, chunk_bytes: int = 64 << 10
) -> list[SmallDataset]:
    """A snapshot after each part of so many files; the last part has a large one too."""
    content = random.Random(1).randbytes(FILE_BYTES + sum(parts))
    found, number = [], 0
    with Client.connect(
        "d",
        store=LocalDirectory(folder / "store"),
        index=MemoryStore(),
        create=True,
        snapshot_folder=folder / "snapshots",
        target_bytes=chunk_bytes,
        open_chunks=1,
    ) as client:
        for part, files in enumerate(parts):
            for _ in range(files):
                client.put(content[number : number + FILE_BYTES], f"{number % 7}/{number}")
                number += 1
            if large_bytes and part + 1 == len(parts):
                client.put(bytes(large_bytes), "large")
            client.flush()
            path = client.save_meta()
            with Snapshot.open(path) as snapshot:
                chunks, size = snapshot.chunk_count, int(snapshot.columns.length.sum())
            found.append(SmallDataset(folder / "store", folder / "log", path, chunks, size))
    return found


def free_addresses(count: int) -> tuple[PeerAddress, ...]:
    """Return addresses at which nodes may listen later: no other test is given their ports."""
    return tuple(PeerAddress("127.0.0.1", free_port()) for _ in range(count))


class PeerNode:
    """A process that leads one node's memory, and does what it is told."""

    def __init__(
        self, root: Path, dataset: SmallDataset, settings: PeerSettings, **options: object
    ) -> None:
        self._view = ViewFile(TaskFolder.at(settings.task, root).path)
        self._began = time.monotonic()
        self._told, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(
            target=_serve, args=(theirs, root, dataset, settings, options), daemon=True
        )
        self.process.start()
        theirs.close()

    def tell(self, what: str) -> None:
        self._told.send(what)

    def told(self) -> Any:
        assert self._told.poll(DEADLINE_S), "the node says nothing"
        answer = self._told.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def statistics(self) -> TaskStatistics:
        self.tell("statistics")
        found = self.told()
        assert isinstance(found, TaskStatistics)
        return found

    def sees(self, count: int) -> bool:
        """Return whether its processes may ask so many, itself included.

        A view that an earlier process of the node has left does not count.
        """
        view = self._view.current()
        if view is None or any(at < self._began for at in view.answered.values()):
            return False
        return len(reachable(view)) == count

    def kill(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)

    def begin_to_end(self) -> None:
        if self.process.is_alive():
            with suppress(BrokenPipeError):
                self.tell("end")

    def end(self) -> None:
        self.process.join(DEADLINE_S / 4)
        self.kill()  # nothing is left of a test that failed
        self._told.close()
        self.process.close()


@contextmanager
def ending(nodes: Sequence[PeerNode]) -> Iterator[None]:
    try:
        yield
    finally:
        for node in nodes:
            node.begin_to_end()
        for node in nodes:
            node.end()


def _serve(
    told: Connection,
    root: Path,
    dataset: SmallDataset,
    settings: PeerSettings,
    options: dict[str, Any],
) -> None:
    _be_quick_and_patient()
    with Snapshot.open(dataset.snapshot) as snapshot:
        store = LoggedStore(dataset.store, dataset.log)
        folder = TaskFolder.at(settings.task, root)
        source = PeerSource(ChunkReader(store, snapshot.dataset, ExpectedFiles(snapshot)), folder)
        options = {"budget_bytes": 64 << 20, **options}
        with NodeMemory.open(folder, source, lead=True, peers=settings, **options) as memory:
            while True:
                match told.recv():
                    case "statistics":
                        told.send(memory.task_statistics())
                    case "read":
                        told.send(_read_all(memory, snapshot, settings.member or str(root)))
                    case _:
                        return


def _be_quick_and_patient() -> None:
    """What a node waits for on purpose is short, and what it bears of others long."""
    peer_cache.STEADY_S = 0.2  # type: ignore[misc]
    node_share.COUNTED_EVERY_S = 0.1  # type: ignore[misc]
    membership.PING_EVERY_S = membership.HEARTBEAT_S = 0.1  # type: ignore[misc]
    peer_cache.SETTLED_S = 10 * DEADLINE_S  # type: ignore[misc]
    view_file.OLDEST_S = 10 * DEADLINE_S  # type: ignore[misc]
    membership.LEASE_S = redis_registry.LEASE_S = DEADLINE_S  # type: ignore[attr-defined]
    be_patient()


def _read_all(memory: NodeMemory, snapshot: Snapshot, seed: str) -> int:
    """All files, in an order of this node's own, each verified; how many were wrong or failed."""
    inodes = list(range(snapshot.header.files))
    random.Random(seed).shuffle(inodes)
    wrong = 0
    for inode in inodes:
        file = snapshot.extent(inode)
        data = memory.read(file, 0, file.length)
        wrong += xxhash.xxh3_64_intdigest(data) != file.hash
    return wrong

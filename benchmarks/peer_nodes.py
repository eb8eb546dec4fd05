"""Nodes of one task as processes of this machine, on loopback, for benches of what they cost rather
than of how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from metadata.snapshot import Snapshot
from tests.peers.task_nodes import NAME, SECRET, TASK, PeerDataset
from tests.services.network_nodes import TMPFS
from tests.services.redis_processes import RedisProcess

NO_MEMORY_BYTES = 1 << 20
"""Less than a chunk: what is not here is read as ranges of its owner's memory."""


@dataclass(frozen=True, slots=True)
class OnLoopback:
    """Each node is a process with its own memory folder; they find each other in a Redis."""

    folder: Path
    dataset: PeerDataset
    redis_url: str

    def order(self, memory_bytes: int) -> dict[str, Any]:
        """See `reader_node`."""
        return {
            "disk": str(self.dataset.disk),
            "dataset": NAME,
            "snapshot": str(self.dataset.snapshot),
            "memory_bytes": memory_bytes,
            "task": TASK,
        }

    def memory(self, number: int) -> Path:
        folder = self.folder / f"memory{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def environment(self, number: int, *, gives_memory: bool) -> dict[str, str]:
        return {
            "DIESELFS_MEMORY_FOLDER": str(self.memory(number)),
            "DIESELFS_INDEX": self.redis_url,
            "DIESELFS_PEERS": "redis",
            "DIESELFS_PEER_NAME": f"node{number}",
            "DIESELFS_TASK_SECRET": SECRET,
            "DIESELFS_NO_SHARE": "" if gives_memory else "1",
        }


@contextmanager
def on_loopback(dataset: PeerDataset) -> Iterator[OnLoopback]:
    """Their memories are on a tmpfs, and gone at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="dieselfs-bench-", dir=TMPFS)))
        server = stack.enter_context(RedisProcess(folder / "redis"))
        yield OnLoopback(folder, dataset, server.url)


def contents(dataset: PeerDataset) -> Iterator[tuple[str, memoryview]]:
    """Each file with its path, from the store, as fast as that is."""
    with Snapshot.open(dataset.snapshot) as snapshot:
        reader = ChunkReader(LocalDirectory(dataset.disk / "store"), snapshot.dataset)
        for number in range(snapshot.chunk_count):
            payload = reader.payload(snapshot.chunk(number))
            for inode in snapshot.files_in_chunk(number):
                file = snapshot.extent(int(inode))
                path = snapshot.path_of(int(inode)).decode()
                yield path, payload[file.offset : file.offset + file.length]

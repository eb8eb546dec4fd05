"""Nodes of one task as processes of this machine, on loopback, for benches of what they cost rather than of how they fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from metadata.snapshot import Snapshot
from tests.peers.task_nodes import NAME, SECRET, PeerDataset

NO_MEMORY_BYTES = 1 << 20
"""Less than a chunk: what is not here is read as ranges of its owner's memory."""


@dataclass(frozen=True, slots=True)
class OnLoopback:
    """Nodes of one task as processes of this machine: each has its own memory folder and port."""

    folder: Path
    dataset: PeerDataset
    ports: Sequence[int]

    def order(self, memory_bytes: int) -> dict[str, Any]:
        """See `reader_node`."""
        return {
            "disk": str(self.dataset.disk),
            "dataset": NAME,
            "snapshot": str(self.dataset.snapshot),
            "memory_bytes": memory_bytes,
            "task": "bench",
        }

    def environment(self, number: int, *, gives_memory: bool) -> dict[str, str]:
        memory = self.folder / f"memory{number}"
        memory.mkdir(exist_ok=True)
        return {
            "DIESELFS_MEMORY_FOLDER": str(memory),
            "DIESELFS_INDEX": f"lmdb://{self.folder}/index",
            "DIESELFS_PEERS": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "DIESELFS_PEER_LISTEN": f"127.0.0.1:{self.ports[number]}",
            "DIESELFS_TASK_SECRET": SECRET,
            "DIESELFS_NO_SHARE": "" if gives_memory else "1",
        }


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

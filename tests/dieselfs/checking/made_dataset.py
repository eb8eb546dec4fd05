"""A small dataset in memory whose every object can be damaged, and what lies where in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chunkstore.chunk_format import KIND_FILE, decode_head
from chunkstore.chunk_id import ChunkId
from chunkstore.commit_log import CommitLog
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from metadata.kv.memory import MemoryStore

NAME = "pets"


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """Return the data with one bit flipped. A constant may be the byte that is there already."""
    other = bytearray(data)
    other[at] ^= 1 << bit
    return bytes(other)


@dataclass
class MadeDataset:
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    index: MemoryStore = field(default_factory=MemoryStore)
    name: str = NAME

    def open(self) -> Dataset:
        return open_dataset(self.store, self.index, self.name, create=True)

    def put(self, files: dict[str, bytes], target_bytes: int = 4096) -> None:
        """A commit of its own."""
        with DatasetWriter(self.open(), target_bytes=target_bytes) as writer:
            for path, data in files.items():
                writer.put(path.encode(), data, 0o644, 1)

    def objects(self, folder: str = "chunks") -> list[str]:
        """The objects of the dataset below `folder`, in order."""
        found = self.store.list(f"datasets/{self.name}/{folder}/")
        return sorted(info.key for info in found)

    def replace(self, key: str, data: bytes | None) -> bytes:
        """Let the object hold `data`, or be gone; what it held."""
        before = self.store.get(key)
        self.store.delete(key)
        if data is not None:
            self.store.create(key, [data])
        return before

    def flip(self, key: str, at: int, bit: int = 0) -> None:
        self.replace(key, flipped(self.store.get(key), at, bit))

    def head_bytes(self, key: str) -> int:
        return decode_head(self.store.get(key)).head_bytes

    def paths(self, key: str) -> tuple[bytes, ...]:
        """The paths of the files in a chunk."""
        entries = decode_head(self.store.get(key)).entries
        kinds = entries.kind.tolist()
        found = zip(entries.paths, kinds, strict=True)
        return tuple(sorted(path for path, kind in found if kind == KIND_FILE))

    def file_at(self, key: str, at: int) -> bytes:
        """The path of the file that has byte `at` of a chunk object."""
        head = decode_head(self.store.get(key))
        entries, at = head.entries, at - head.head_bytes
        for path, start, length in zip(
            entries.paths, entries.offset.tolist(), entries.length.tolist(), strict=True
        ):
            if start <= at < start + length:
                return path
        raise AssertionError(f"no file at {at} of {key}")


def some_files(count: int = 40, top: str = "", size_bytes: int = 700) -> dict[str, bytes]:
    """Files of up to `size_bytes` in three directories of `top`."""
    made = random.Random(count)
    return {
        f"{top}{'abc'[number % 3]}/{number:03d}.jpg": made.randbytes(made.randint(1, size_bytes))
        for number in range(count)
    }


def retire(made: MadeDataset, key: str) -> None:
    """Replace all files of a chunk, and commit that it is retired. Its object stays."""
    made.put({path.decode(): b"newer" for path in made.paths(key)})
    dataset = made.open()
    chunk_id = ChunkId.parse(key.rpartition("/")[2])
    CommitLog(made.store, dataset.ref).append(dataset.namespace.state().generation, [], [chunk_id])

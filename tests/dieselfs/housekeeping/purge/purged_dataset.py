"""A dataset in memory with a dictionary beside it that says what it must hold, and comparisons of
its index with ones made from the store."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.commit_log import CommitLog
from chunkstore.object_keys import chunk_prefix
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeReport, PurgeRequest
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.rebuilding import rebuild

NAME = "pets"
TARGET = 4096
SMALL_ROUNDS = PurgeRequest(leave=0, grace_s=0, small_bytes=1 << 10, target_bytes=TARGET)

Maps = dict[bytes, dict[bytes, bytes]]


@dataclass
class PurgedDataset:
    """Files by path as they must be read."""

    store: ObjectStore = field(default_factory=MemoryObjectStore)
    index: KeyValueStore = field(default_factory=MemoryStore)
    files: dict[bytes, bytes] = field(default_factory=dict)
    directories: set[bytes] = field(default_factory=set)
    """Put as such, or above a file that was put."""

    def open(self) -> Dataset:
        return open_dataset(self.store, self.index, NAME, create=True)

    def writer(self, dataset: Dataset | None = None, open_chunks: int = 2) -> DatasetWriter:
        return DatasetWriter(dataset or self.open(), target_bytes=TARGET, open_chunks=open_chunks)

    def put(self, files: dict[bytes, bytes]) -> None:
        with self.writer() as writer:
            for path, data in files.items():
                writer.put(path, data, 0o640, len(path))
                self._remember(path, data)

    def delete(self, *paths: bytes) -> None:
        dataset = self.open()
        with self.writer(dataset) as writer:
            for path in paths:
                writer.delete(dataset.namespace.stat(path))
                del self.files[path]

    def delete_tree(self, top: bytes) -> None:
        dataset = self.open()
        applied = dataset.namespace.state().generation
        with self.writer(dataset) as writer:
            for path in [path for path in self.files if path.startswith(top + b"/")]:
                writer.delete(dataset.namespace.stat(path))
                del self.files[path]
            for path in sorted(self.directories):
                if path == top or path.startswith(top + b"/"):
                    writer.delete(dataset.namespace.stat(path), applied)
                    self.directories.discard(path)

    def make_directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        with self.writer() as writer:
            writer.put_directory(path, mode, mtime_ns)
        if path:
            self._remember_above(path + b"/")

    def purge(self, request: PurgeRequest = SMALL_ROUNDS) -> PurgeReport:
        return purge(self.open(), request)

    def check(self) -> None:
        """The index says what the dictionary says and what the store says, and every file is
        read."""
        dataset = self.open()
        self.check_content(dataset)
        present = maps_of(dataset.index)
        assert present == maps_of(caught_up(dataset))
        assert present == maps_of(rebuilt(dataset))

    def check_content(self, dataset: Dataset) -> None:
        found, directories = {}, set()
        client = Reading(dataset)
        for listing in dataset.namespace.walk():
            prefix = listing.path + b"/" if listing.path else b""
            for name, row in zip(listing.file_names, listing.files, strict=True):
                found[prefix + name] = client.read(row)
            directories.update(prefix + name for name in listing.directory_names)
        assert found == self.files
        assert directories == self.directories

    def objects(self) -> set[str]:
        return {info.key.rpartition("/")[2] for info in self.store.list(chunk_prefix(NAME))}

    def entries(self) -> list[bytes]:
        """The names that any record is left of, deletions included; b'' is the root's."""
        kinds = (b"f", b"d")
        return [
            name
            for key, found in maps_of(self.index).items()
            if key.endswith(kinds)
            for name in found
        ]

    def _remember(self, path: bytes, data: bytes) -> None:
        self.files[path] = data
        self._remember_above(path)

    def _remember_above(self, path: bytes) -> None:
        while b"/" in path:
            path = path.rpartition(b"/")[0]
            self.directories.add(path)


@dataclass
class Reading:
    """Reads files by their rows, every byte verified."""

    dataset: Dataset

    def read(self, row: np.void) -> bytes:
        record = self.dataset.namespace.chunk(bytes(row["chunk"]))
        ref = ChunkRef(ChunkId(bytes(row["chunk"])), record.head_bytes, record.payload_bytes)
        extent = FileExtent(ref, int(row["offset"]), int(row["length"]), int(row["hash"]))
        return bytes(self.dataset.reader.read(extent, 0, extent.length))


def caught_up(dataset: Dataset) -> MemoryStore:
    """A new index that follows the commits from the first on."""
    index = MemoryStore()
    Namespace(index, dataset.ref).catch_up(CommitLog(dataset.store, dataset.ref), dataset.reader)
    return index


def rebuilt(dataset: Dataset) -> MemoryStore:
    """A new index made by the rebuild."""
    index = MemoryStore()
    commits = list(dataset.log.since(0))
    rebuild(
        dataset.ref,
        commits,
        lambda ref: dataset.reader.head(ref.id, ref.head_bytes),
        EmptyIndex(index),
    )
    return index


def maps_of(index: KeyValueStore) -> Maps:
    """Every field of every map, but for the names of datasets."""
    assert isinstance(index, MemoryStore)
    maps = index._maps
    return {key: dict(found) for key, found in maps.items() if found and key != keys.DATASETS}


PATHS = [b"a", b"b", b"c/a", b"c/b", b"c/d/a", b"c/d/b", b"e/a", b"e/f/g/a", b"e/f/b", b"h/i"]
DIRECTORIES = [b"", b"c", b"c/d", b"e", b"e/f", b"e/f/g", b"h", b"j", b"j/k"]


def random_change(world: PurgedDataset, draw: random.Random) -> None:
    """One or two commits of puts, overwrites and deletions."""
    kind = draw.random()
    if kind < 0.5 or not world.files:
        free = [path for path in PATHS if path not in world.directories]
        chosen = draw.sample(free, draw.randint(1, min(6, len(free))))
        world.put({path: draw.randbytes(draw.choice([0, 9, 300, 1500, 5000])) for path in chosen})
    elif kind < 0.7:
        paths = sorted(world.files)
        world.delete(*draw.sample(paths, draw.randint(1, min(4, len(paths)))))
    elif kind < 0.85 and world.directories:
        world.delete_tree(draw.choice(sorted(world.directories)))
    else:
        path = draw.choice([path for path in DIRECTORIES if path not in world.files])
        world.make_directory(path, draw.choice([0o755, 0o700]), draw.randint(-9, 9))

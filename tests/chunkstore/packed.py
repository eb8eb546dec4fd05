"""Packing into memory, and what came out, for the tests of writer, reader and commits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from chunkstore.chunk_format import KIND_FILE, ChunkHead, DatasetRef, decode_head
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_source import FileExtent
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")
DATASET = DatasetRef("pets", b"an id 16 bytes..")


@dataclass
class Packed:
    """The chunks that a writer emitted, in order."""

    chunks: list[SealedChunk] = field(default_factory=list)
    process: bytes | None = None
    """If given, the process field of the one writer's ids, which are the same in every run then."""

    def writer(self, **options: int | str) -> ChunkWriter:
        ids = ChunkIdGenerator(lambda: 1000, bytes(6), self.process)
        return ChunkWriter(DATASET, ids, self.chunks.append, **options)  # type: ignore[arg-type]

    def heads(self) -> list[ChunkHead]:
        return [decode_head(chunk.head, chunk.ref.id) for chunk in self.chunks]

    def payloads(self) -> list[bytes]:
        return [b"".join(chunk.payload) for chunk in self.chunks]

    def files(self) -> dict[bytes, bytes]:
        """Path to content; of equal paths the later chunk id and position stands."""
        found = {}
        for chunk, head in sorted(zip(self.chunks, self.heads(), strict=True), key=_by_id):
            payload, entries = b"".join(chunk.payload), head.entries
            for at, path in enumerate(entries.paths):
                if entries.kind[at] == KIND_FILE:
                    start = int(entries.offset[at])
                    found[path] = payload[start : start + int(entries.length[at])]
        return found

    def store_in(self, store: ObjectStore) -> None:
        for chunk in self.chunks:
            store.create(chunk_key(DATASET.name, chunk.ref.id), [chunk.head, *chunk.payload])

    def extents(self) -> dict[bytes, FileExtent]:
        found = {}
        for chunk, head in zip(self.chunks, self.heads(), strict=True):
            entries = head.entries
            columns = (entries.offset, entries.length, entries.hash)
            for path, *numbers in zip(entries.paths, *(c.tolist() for c in columns), strict=True):
                found[path] = FileExtent(chunk.ref, *numbers)
        return found


def _by_id(pair: tuple[SealedChunk, ChunkHead]) -> bytes:
    return pair[1].chunk_id.value


def fewest(total_bytes: int, target_bytes: int) -> int:
    return math.ceil(total_bytes / target_bytes)


class StoreWrapper:
    """Passes everything on; `before` and `after` of a subclass may count, raise or wait."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def before(self, call: str, key: str) -> None: ...

    def after(self, call: str, key: str) -> None: ...

    def create(self, key: str, parts: object) -> None:
        self._pass_on("create", key, lambda: self.inner.create(key, parts))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        return self._pass_on("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._pass_on("get_range", key, lambda: self.inner.get_range(key, offset, length))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._pass_on("list", prefix, lambda: self.inner.list(prefix))

    def delete(self, key: str) -> None:
        self._pass_on("delete", key, lambda: self.inner.delete(key))

    def stat(self, key: str) -> ObjectInfo:
        return self._pass_on("stat", key, lambda: self.inner.stat(key))

    def _pass_on(self, call: str, key: str, act: Callable[[], T]) -> T:
        self.before(call, key)
        result = act()
        self.after(call, key)
        return result


class CountingStore(StoreWrapper):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[str] = []

    def before(self, call: str, key: str) -> None:
        self.calls.append(call)

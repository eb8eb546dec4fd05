"""A small packed dataset, and the object store that it lies in, as the threads of a simulation meet
it."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeVar

from chunkstore.chunk_format import BLOCK_BYTES, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.chunk_writer import ChunkWriter
from chunkstore.object_keys import chunk_key
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectInfo
from tests.chunkstore.packed import Packed
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Scheduler

T = TypeVar("T")
DATASET = DatasetRef("pets", b"an id 16 bytes..")


@dataclass(frozen=True, slots=True)
class SmallDataset:
    """Files of 0 to 3,000 bytes, a few a chunk; in one dataset of four a file of more than one
    block besides."""

    store: MemoryObjectStore
    chunks: tuple[ChunkRef, ...]
    files: tuple[tuple[FileExtent, bytes], ...]
    payloads: dict[ChunkId, bytes]
    heads: dict[ChunkId, bytes]

    @property
    def has_large_file(self) -> bool:
        return any(extent.length > BLOCK_BYTES for extent, _ in self.files)


@functools.cache
def small_dataset(number: int) -> SmallDataset:
    draw = random.Random(f"dataset {number}")
    packed = Packed()
    writer = ChunkWriter(
        DATASET, _Ids(draw), packed.chunks.append, target_bytes=4096, open_chunks=1, seed=number
    )
    for at in range(draw.randint(6, 24)):
        size = draw.choice([0, 1, 10, 500, draw.randint(1, 3000), draw.randint(1, 3000)])
        if number % 4 == 3 and at == 2:
            size = 300_000
        writer.add_file(b"f/%d" % at, draw.randbytes(size), 0o644, 0)
    writer.flush()
    store = MemoryObjectStore()
    for chunk in packed.chunks:
        store.create(chunk_key(DATASET.name, chunk.ref.id), [chunk.head, *chunk.payload])
    content = packed.files()
    return SmallDataset(
        store,
        tuple(chunk.ref for chunk in packed.chunks),
        tuple((extent, content[path]) for path, extent in packed.extents().items()),
        {chunk.ref.id: b"".join(chunk.payload) for chunk in packed.chunks},
        {chunk.ref.id: chunk.head for chunk in packed.chunks},
    )


class _Ids:
    """Chunk ids of the same dataset are the same in every run."""

    def __init__(self, draw: random.Random) -> None:
        self._next = draw.getrandbits(100)

    def next(self) -> ChunkId:
        self._next += 1
        return ChunkId(self._next.to_bytes(16, "big"))


@dataclass(slots=True)
class Gets:
    """What has left the store."""

    whole: Counter[ChunkId] = field(default_factory=Counter)
    ranges: Counter[ChunkId] = field(default_factory=Counter)

    def clear(self) -> None:
        self.whole.clear()
        self.ranges.clear()


class SimulatedStore:
    """Implements `ObjectStore` for reading: sound, and late by a seeded latency of which one in
    twenty is a straggler."""

    def __init__(self, scheduler: Scheduler, dataset: SmallDataset, latency_s: float) -> None:
        self._scheduler, self._store = scheduler, dataset.store
        self.latency_s = latency_s
        self.gets = Gets()
        self.calls = 0
        self._ids = {chunk_key(DATASET.name, chunk.id): chunk.id for chunk in dataset.chunks}

    def get(self, key: str) -> bytes:
        self.gets.whole[self._ids[key]] += 1
        self._wait(f"get {self._ids[key]}")
        return self._store.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.gets.ranges[self._ids[key]] += 1
        self._wait(f"range of {self._ids[key]}")
        return self._store.get_range(key, offset, length)

    def create(self, key: str, parts: object) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def stat(self, key: str) -> ObjectInfo:
        return self._store.stat(key)

    def _wait(self, why: str) -> None:
        scheduler = self._scheduler
        self.calls += 1
        scheduler.trace(f"store: {why}")
        draw = scheduler.random.random
        seconds = self.latency_s * (0.5 + draw())
        scheduler.sleep(seconds * 10 if draw() < 0.05 else seconds, f"the store ({why})")


class SimulatedCallThreads:
    """Takes the place of the `CallThreads` of a reader, which are real threads."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self._runtime = runtime

    def run_all(self, calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
        """As the original, all at once: the readers here have few."""
        results: list[tuple[T | None, Exception | None]] = [(None, None)] * len(calls)

        def run(number: int) -> None:
            try:
                results[number] = calls[number](), None
            except Exception as error:
                results[number] = None, error

        if len(calls) == 1:
            run(0)
        else:
            threads = [self._runtime.start(partial(run, at), "read") for at in range(len(calls))]
            for thread in threads:
                assert thread.join(inf)
        for _, error in results:
            if error is not None:
                raise error
        return [result for result, _ in results]  # type: ignore[misc]

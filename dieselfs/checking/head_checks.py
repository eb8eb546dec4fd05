"""The heads of all chunks, each read once and checked, and handed on to whoever rebuilds the index from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from chunkstore.chunk_format import ChunkHead, DatasetRef, Entries
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.chunk_check import ChunkDamage, check_head
from dieselfs.recovery.parallel_reads import read_in_parallel

_NOTHING: Final = np.zeros(0, np.uint64)


@dataclass(slots=True)
class HeadChecks:
    """Thread-safe. A chunk without a sound head counts as one without entries."""

    store: ObjectStore
    dataset: DatasetRef
    sizes: Mapping[ChunkId, int]
    """By the listing."""
    progress: Callable[[int, int], None]
    """Told the entries and bytes of each head."""
    damages: dict[ChunkId, ChunkDamage] = field(default_factory=dict)
    headless: set[ChunkId] = field(default_factory=set)
    """Chunks without a sound head: what they hold they do not say any more."""
    _checked: set[ChunkId] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, chunk: ChunkRef) -> ChunkHead:
        """The chunk's head. One ranged read."""
        head, damage = check_head(self.store, self.dataset, chunk, self.sizes.get(chunk.id))
        with self._lock:
            fresh = chunk.id not in self._checked
            self._checked.add(chunk.id)
            if damage is not None:
                self.damages[chunk.id] = damage
            if head is None:
                self.headless.add(chunk.id)
        if fresh:
            self.progress(len(head.entries) if head else 0, chunk.head_bytes)
        return head or _empty_head(self.dataset, chunk)

    def read_rest(self, chunks: Iterable[ChunkRef]) -> None:
        """Check those of `chunks` that nobody has read."""
        rest = [chunk for chunk in chunks if chunk.id not in self._checked]
        for _ in read_in_parallel(self.read, rest):
            pass


def _empty_head(dataset: DatasetRef, chunk: ChunkRef) -> ChunkHead:
    entries = Entries(
        paths=[],
        kind=_NOTHING.astype(np.uint8),
        mode=_NOTHING.astype(np.uint16),
        mtime_ns=_NOTHING.astype(np.int64),
        offset=_NOTHING,
        length=_NOTHING,
        hash=_NOTHING,
        block_hash=_NOTHING,
    )
    return ChunkHead(chunk.id, dataset, chunk.payload_bytes, entries, chunk.head_bytes)

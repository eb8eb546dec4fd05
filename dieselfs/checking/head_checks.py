"""The check of the heads of all chunks, each read once and passed on to a rebuild of the index."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chunkstore.chunk_format import ChunkHead, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.chunk_check import ChunkDamage, check_head
from dieselfs.recovery.history import empty_head
from dieselfs.recovery.parallel_reads import read_in_parallel


@dataclass(slots=True)
class HeadChecks:
    """A reader of heads that checks them. Thread-safe.

    A chunk without a sound head counts as one without entries.
    """

    store: ObjectStore
    dataset: DatasetRef
    sizes: Mapping[ChunkId, int]
    """The sizes of objects in the listing."""
    progress: Progress = NO_PROGRESS
    """It receives the entries and bytes of each head."""
    damages: dict[ChunkId, ChunkDamage] = field(default_factory=dict)
    headless: set[ChunkId] = field(default_factory=set)
    """The chunks without a sound head, whose content is therefore unknown."""
    _checked: set[ChunkId] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, chunk: ChunkRef) -> ChunkHead:
        """Return the chunk's head; one ranged read."""
        head, damage = check_head(self.store, self.dataset, chunk, self.sizes.get(chunk.id))
        with self._lock:
            fresh = chunk.id not in self._checked
            self._checked.add(chunk.id)
            if damage is not None:
                self.damages[chunk.id] = damage
            if head is None:
                self.headless.add(chunk.id)
        if fresh:
            self.progress.advance(len(head.entries) if head else 0, chunk.head_bytes)
        return head or empty_head(self.dataset, chunk)

    def read_rest(self, chunks: Iterable[ChunkRef]) -> None:
        """Check those of `chunks` that have not been read."""
        rest = [chunk for chunk in chunks if chunk.id not in self._checked]
        for _ in read_in_parallel(self.read, rest):
            pass

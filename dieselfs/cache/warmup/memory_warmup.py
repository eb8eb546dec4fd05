"""Warm-up of a task's node memory: its master fetches the chunks ahead of their readers.

Files in chunks above 16 MiB are loaded by cache blocks of 4 MiB. The master decides
what has room. No more is asked for than its budget holds: a policy that evicts would evict what has
just been loaded.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Final, Protocol

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt, NotFound
from dieselfs.cache.ports.block import CacheBlock, blocks_of, is_whole
from dieselfs.cache.warmup.warm_up import Outcome
from dieselfs.errors import CacheFull, MasterGone
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

JOBS: Final = 4
"""Fetches at a time: enough to keep a local disk busy, few enough to let readers pass."""
_ELECTIONS: Final = 5
"""The masters that may end one after another before the warm-up fails."""
_NO_ROOM: Final = (
    "node memory is full: give the task more memory (`open_memory(budget_bytes)`, --memory), or "
    "prefetch less at a time"
)


class FetchingMemory(Protocol):
    """Node memory as its warm-up uses it: `NodeMemory`."""

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        """Return when the blocks are cached, ahead of their readers; see `MasterPort.fetch`."""
        ...


class MemoryTarget:
    """Node memory as a `WarmUpTarget`, for the chunks of a snapshot."""

    def __init__(
        self,
        memory: FetchingMemory,
        folder: str | os.PathLike[str],
        budget_bytes: int,
        snapshot: Snapshot,
    ) -> None:
        """`folder` has the files of the cached blocks."""
        self.jobs = JOBS
        self._memory, self._folder, self._budget_bytes = memory, folder, budget_bytes
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._least_refused: int | None = None
        """The length of the smallest block that was refused."""
        self._lost_masters = 0
        self._cached_bytes = 0

    def cached(self, chunks: Sequence[ChunkRef]) -> Container[bytes]:
        """See `WarmUpTarget`. Costs one listing of the task's folder."""
        try:
            names = set(os.listdir(self._folder))
        except FileNotFoundError:
            names = set()
        blocks = {chunk: self._blocks(chunk) for chunk in chunks}
        self._cached_bytes = sum(
            block.length for of in blocks.values() for block in of if block.name in names
        )
        return {
            chunk.id.value
            for chunk, of in blocks.items()
            if all(block.name in names for block in of)
        }

    def size(self, chunk: ChunkRef) -> int:
        """See `WarmUpTarget`."""
        return chunk.payload_bytes

    def fitting(self, missing: Sequence[ChunkRef]) -> tuple[int, str]:
        """See `WarmUpTarget`."""
        room = self._budget_bytes - self._cached_bytes
        for count, chunk in enumerate(missing):
            room -= chunk.payload_bytes
            if room < 0:
                return count, _NO_ROOM
        return len(missing), _NO_ROOM

    def units(self, chunk: ChunkRef) -> Sequence[tuple[CacheBlock, int]]:
        """See `WarmUpTarget`."""
        return [(block, block.length) for block in self._blocks(chunk)]

    def load(self, unit: CacheBlock) -> Outcome | None:
        """See `WarmUpTarget`. A block as large as a refused one is refused at once."""
        if self._least_refused is not None and unit.length >= self._least_refused:
            return "no room"
        if os.path.exists(os.path.join(self._folder, unit.name)):
            return "cached"  # a reader was faster
        try:
            self._memory.fetch_blocks([unit])
        except CacheFull:
            with self._lock:
                known = self._least_refused
                self._least_refused = unit.length if known is None else min(known, unit.length)
            return "no room"
        except (NotFound, Corrupt) as error:
            log.warning("cannot load block %s: %s: %s", unit.name, type(error).__name__, error)
            return "lost"
        except MasterGone:
            with self._lock:
                self._lost_masters += 1
                if self._lost_masters > _ELECTIONS:
                    raise
            return None  # the next attempt elects a master
        self._lost_masters = 0
        return "loaded"

    def _blocks(self, chunk: ChunkRef) -> list[CacheBlock]:
        """Return the cache blocks of a chunk; none if it is empty."""
        if not chunk.payload_bytes:
            return []
        if is_whole(chunk):
            return [CacheBlock(chunk)]
        files = map(self._snapshot.extent, self._snapshot.files_in_chunk(self._number[chunk.id]))
        return [block for file in files for block, _ in blocks_of(file, 0, file.length)]

    @cached_property
    def _number(self) -> dict[ChunkId, int]:
        """The number of each chunk in the snapshot."""
        ids = self._snapshot.columns.chunk_id
        return {ChunkId(id_.tobytes()): number for number, id_ in enumerate(ids)}

"""Chunks fetched into node memory when the mount begins (DIESEL §4.2: oneshot).

Otherwise they are fetched when they are first read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import count
from typing import Final

from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import ChunkStoreError
from dieselfs.cache.ports.block import CacheBlock, is_whole
from dieselfs.errors import CacheFull, LocalFileError, MasterGone
from dieselfs.prefetch.prefetcher import PlannedMemory
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

FETCHES: Final = 4
"""Fetches at a time: enough to keep a local disk busy, few enough to let readers pass."""


class Preload:
    """The preload of a mount.

    It fetches the chunks in their order until `budget_bytes` are in memory, or there is no more
    room, which other processes of the task may have taken. A chunk that cannot be fetched is left
    to its readers. The threads do not keep the process alive.
    """

    def __init__(self, snapshot: Snapshot, memory: PlannedMemory, budget_bytes: int) -> None:
        self._memory = memory
        self._chunks = _that_fit(snapshot, budget_bytes)
        self._lock = threading.Lock()
        self._is_stopped = False
        self._ended = count(1)
        self.threads = [
            threading.Thread(target=self._fetch_all, name=f"preload-{number}", daemon=True)
            for number in range(FETCHES)
        ]

    def start(self) -> None:
        """Start the threads. They end when all is fetched."""
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Fetch no more, without waiting for fetches under way."""
        self._is_stopped = True

    def _fetch_all(self) -> None:
        try:
            while (chunk := self._next()) is not None:
                try:
                    self._memory.fetch_blocks([CacheBlock(chunk)])
                except CacheFull:
                    return
                except (ChunkStoreError, MasterGone, LocalFileError) as error:
                    log.warning("cannot preload chunk %s: %s", chunk.id, error)
        except Exception:
            log.exception("the preload has failed")
        if next(self._ended) == FETCHES and not self._is_stopped:
            log.info("the preload is done")

    def _next(self) -> ChunkRef | None:
        with self._lock:
            return None if self._is_stopped else next(self._chunks, None)


def _that_fit(snapshot: Snapshot, budget_bytes: int) -> Iterator[ChunkRef]:
    for number in range(snapshot.chunk_count):
        chunk = snapshot.chunk(number)
        if not chunk.payload_bytes or not is_whole(chunk):
            continue  # one large file, cached in blocks as it is read
        budget_bytes -= chunk.payload_bytes
        if budget_bytes < 0:
            return
        yield chunk

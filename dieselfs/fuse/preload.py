"""Chunks fetched into node memory when the mount begins, rather than when they are first read (DIESEL §4.2: oneshot)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.errors import ChunkStoreError
from dieselfs.errors import LocalFileError, MasterGone, NoRoom
from dieselfs.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkstore.chunk_source import ChunkRef
    from dieselfs.plan.follower import PlannedMemory
    from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

FETCHES: Final = 4
"""At a time: enough to keep a local disk busy, few enough to let readers pass."""


async def preload(snapshot: Snapshot, memory: PlannedMemory, budget_bytes: int) -> None:
    """Fetch the chunks in their order until `budget_bytes` are in memory, or there is no more room, which others of the task may have taken.

    A chunk that can't be fetched is left to its readers.
    """
    threads = WorkerThreads(FETCHES)
    chunks = _that_fit(snapshot, budget_bytes)

    async def fetch_next() -> None:
        for chunk in chunks:
            try:
                await threads.run_abandonable(memory.fetch, [chunk])
            except NoRoom:
                return
            except (ChunkStoreError, MasterGone, LocalFileError) as error:
                log.warning("chunk %s is not preloaded: %s", chunk.id, error)

    async with trio.open_nursery() as nursery:
        for _ in range(FETCHES):
            nursery.start_soon(fetch_next)
    log.info("preloaded")


def _that_fit(snapshot: Snapshot, budget_bytes: int) -> Iterator[ChunkRef]:
    for number in range(snapshot.chunk_count):
        chunk = snapshot.chunk(number)
        if chunk.payload_bytes > MAX_WHOLE_BYTES:
            continue  # one large file, cached in pieces as it is read
        budget_bytes -= chunk.payload_bytes
        if budget_bytes < 0:
            return
        yield chunk

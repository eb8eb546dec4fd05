"""Requests that wait for blocks to be loaded into memory.

Some threads load blocks; another one notifies the clients that their requests are worked at. One
thread loads a block however many requests wait for it, and a request waits for all its blocks at
once. So no thread waits for another, and the bound is on the number of blocks. A client that finds
no room in the queue is told that the block is not cached: it can read the store itself.

A thread that loads also answers, and a client that was stopped may occupy it for long. Another
thread then loads in its stead, so that the processes of one node that takes nothing keep no other
node waiting. There is at most one such thread a connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from chunkstore.errors import ChunkStoreError
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import CachedChunks, LoadsCached
from dieselfs.cache.ports.fetched_bytes import fetched_bytes
from dieselfs.cache.ports.runtime import Running, Runtime
from dieselfs.cache.wire.messages import Answer, Failed, NotCached, Request
from dieselfs.errors import CacheFull, LocalFileError, MasterGone

log = logging.getLogger(__name__)

WORKING_S: Final = 0.3
"""The interval of the notices that a request is worked at.

It is a third of the silence that a client tolerates.
"""


class WaitingClient(Protocol):
    """A connection whose requests wait. Neither call raises."""

    @property
    def cached(self) -> CachedChunks:
        """The cache from which the client is served."""
        ...

    def finish(
        self, number: int, request: Request, failure: Answer | None, fetched_bytes: int
    ) -> None:
        """Answer the request: all its blocks were loaded, or there is nothing to wait for.

        `fetched_bytes` are those that the store gave for this request, and for no other one.
        May block for as long as the client takes to receive its answer.
        """
        ...

    def report_working(self, number: int) -> None:
        """Notify the client that its request is worked at."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits."""

    client: WaitingClient
    number: int
    request: Request
    missing: int
    """Blocks that are not loaded yet; 0 if the request has been answered."""
    fetched_bytes: int = 0
    """The bytes that were fetched of the store for blocks that this request asked for first."""


class SlowAnswers:
    """The requests that wait, and the threads that load. Thread-safe.

    Threads begin when there is something to do.
    """

    def __init__(self, runtime: Runtime, max_workers: int, max_blocks: int) -> None:
        self._runtime = runtime
        self._max_workers = max_workers
        self._max_blocks = max_blocks
        lock = runtime.lock()
        self._lock = lock
        self._queued = runtime.condition(lock)
        self._waits = runtime.condition(lock)
        self._queue: deque[tuple[CacheBlock, CachedChunks, bool]] = deque()
        """Blocks, and whether they may be fetched of the store."""
        self._wanted: dict[tuple[str, bool], list[_Waiting]] = {}
        """Requests by a block that is queued or being loaded, and whether it may be fetched."""
        self._waiting: dict[_Waiting, None] = {}  # ordered, so that a simulation can be replayed
        self._notifier: list[Running] = []
        """The thread that sends notices, from the first request on."""
        self._threads: list[Running] = []
        """Threads that load."""
        self._workers = 0
        self._idle = 0
        self._answering = 0
        """Threads that load, and are answering now."""
        self._closed = False
        self._surprises: set[type[Exception]] = set()
        """Types of errors that were logged."""

    def begin(
        self,
        client: WaitingClient,
        number: int,
        request: Request,
        blocks: Sequence[CacheBlock],
        may_fetch: bool = True,
    ) -> bool:
        """Load `blocks`, each named once, then call `client.finish`.

        Without `may_fetch` they are loaded by `LoadsCached`. Return False if there is no room for
        more work.
        """
        with self._lock:
            new = [block for block in blocks if (block.name, may_fetch) not in self._wanted]
            if self._closed or len(self._wanted) + len(new) > self._max_blocks:
                return False
            if not self._start_threads(len(new), self._max_workers):
                return False
            waiting = _Waiting(client, number, request, len(blocks))
            for block in blocks:
                self._wanted.setdefault((block.name, may_fetch), []).append(waiting)
            self._queue.extend((block, client.cached, may_fetch) for block in new)
            if not self._waiting:
                self._waits.notify_all()
            self._waiting[waiting] = None
            self._queued.notify_all()
        return True

    def close(self) -> Sequence[Running]:
        """Load and answer nothing from now on. Return the threads.

        They end as soon as their present work has ended.
        """
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._waiting.clear()
            self._queued.notify_all()
            self._waits.notify_all()
            return *self._notifier, *self._threads

    def _start_threads(self, new: int, most: int) -> bool:
        """Start threads for so many more blocks, but at most `most` that load.

        Return False if there is no such thread at all.
        """
        try:
            if not self._notifier:
                self._notifier.append(
                    self._runtime.start(self._send_notices, "peer-server-notices")
                )
            while self._workers < most and self._idle < len(self._queue) + new:
                self._threads.append(self._runtime.start(self._work, "peer-server-loads"))
                self._workers += 1
                self._idle += 1
        except RuntimeError as error:  # no more threads
            log.warning("the peer server cannot start a thread: %s", error)
        return self._workers > 0

    def _work(self) -> None:
        """Run in a thread, counted as idle at its start: load blocks and answer."""
        while True:
            with self._lock:
                while not self._queue:
                    if self._closed:
                        return
                    self._queued.wait()
                block, cached, may_fetch = self._queue.popleft()
                self._idle -= 1
            before = fetched_bytes()
            loaded, failure = self._load(block, cached, may_fetch)
            with self._lock:
                ended = []
                waits = self._wanted.pop((block.name, may_fetch))
                waits[0].fetched_bytes += fetched_bytes() - before
                for waiting in waits:
                    if waiting.missing and not self._closed:
                        waiting.missing = 0 if failure else waiting.missing - 1
                        if not waiting.missing:
                            self._waiting.pop(waiting, None)
                            ended.append(waiting)
                self._answering += 1
            for waiting in ended:
                waiting.client.finish(
                    waiting.number, waiting.request, failure, waiting.fetched_bytes
                )
            del loaded
            with self._lock:
                self._answering -= 1
                if self._workers > self._max_workers + self._answering:  # another took its place
                    self._workers -= 1
                    return
                self._idle += 1

    def _load(
        self, block: CacheBlock, cached: CachedChunks, may_fetch: bool
    ) -> tuple[object, Answer | None]:
        """Load a block. Return the object that keeps it cached, and the answer if that failed.

        The caller keeps the object until the requests are answered.
        """
        try:
            if may_fetch or not isinstance(cached, LoadsCached):
                return cached.load(block), None
            return cached.load_cached(block), None
        except (CacheFull, MasterGone):
            return None, NotCached()
        except (ChunkStoreError, LocalFileError) as error:
            return None, Failed(str(error))
        except Exception as error:
            if type(error) not in self._surprises:
                self._surprises.add(type(error))
                log.exception("cannot load block %s for a peer", block.name)
            return None, Failed(f"an unexpected error: {type(error).__name__}")

    def _send_notices(self) -> None:
        with self._lock:
            while not self._closed:
                if not self._waiting:
                    self._waits.wait()
                    continue
                self._waits.wait(WORKING_S)
                if self._queue and not self._closed:
                    ended = [thread for thread in self._threads if thread.join(0.0)]
                    self._threads = [each for each in self._threads if each not in ended]
                    self._start_threads(0, self._max_workers + self._answering)
                waiting = list(self._waiting)
                self._lock.release()
                try:
                    for one in waiting:
                        one.client.report_working(one.number)
                finally:
                    self._lock.acquire()

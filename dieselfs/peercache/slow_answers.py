"""Requests that wait for pieces to be brought into memory: some threads bring, one tells the askers that their requests are worked at.

A piece is brought by one thread however many requests wait for it, and a request waits for all its pieces at once; so no thread waits for
another, and what is bounded is the number of pieces. Who finds no room in the queue is told that the piece is not held: it can read the
store itself.

Who brings also answers, and a client that was stopped may keep it at that for long: another thread brings in its stead then, so that the processes of one
node that takes nothing keep no other node waiting. There is at most one such thread a connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from chunkstore.errors import ChunkStoreError
from dieselfs.errors import CacheFull, LocalFileError, MasterGone
from dieselfs.node_memory.piece import CacheBlock
from dieselfs.peercache.held_chunks import CachedChunks
from dieselfs.peercache.messages import Answer, Failed, NotCached, Request
from dieselfs.peercache.runtime import Running, Runtime

log = logging.getLogger(__name__)

WORKING_S: Final = 0.3
"""So often an asker hears that its request is worked at: a third of the silence that it bears."""


class WaitingClient(Protocol):
    """A connection. Neither call raises."""

    @property
    def cached(self) -> CachedChunks:
        """What it is served from."""
        ...

    def finish(self, number: int, request: Request, failure: Answer | None) -> None:
        """All pieces were brought, or there is nothing to wait for. May block for as long as the asker takes to take its answer."""
        ...

    def report_working(self, number: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    client: WaitingClient
    number: int
    request: Request
    missing: int
    """Pieces that are not there yet; 0: it has been answered."""


class SlowAnswers:
    """Thread-safe. Threads begin when there is something to do."""

    def __init__(self, runtime: Runtime, max_workers: int, max_pieces: int) -> None:
        self._runtime = runtime
        self._max_workers = max_workers
        self._max_pieces = max_pieces
        lock = runtime.lock()
        self._lock = lock
        self._queued = runtime.condition(lock)
        self._waits = runtime.condition(lock)
        self._queue: deque[tuple[CacheBlock, CachedChunks]] = deque()
        self._wanted: dict[str, list[_Waiting]] = {}
        """By the name of the piece, queued or being brought."""
        self._waiting: dict[_Waiting, None] = {}  # in order, for replay
        self._teller: list[Running] = []
        """One, from the first request on."""
        self._threads: list[Running] = []
        """Workers."""
        self._workers = 0
        self._idle = 0
        self._answering = 0
        """Workers that do."""
        self._closed = False
        self._surprises: set[type[Exception]] = set()
        """That were logged."""

    def begin(
        self, client: WaitingClient, number: int, request: Request, blocks: Sequence[CacheBlock]
    ) -> bool:
        """Bring `blocks`, each named once, then `client.finish`. False if there is no room for more work."""
        with self._lock:
            new = [block for block in blocks if block.name not in self._wanted]
            if self._closed or len(self._wanted) + len(new) > self._max_pieces:
                return False
            if not self._staff(len(new), self._max_workers):
                return False
            waiting = _Waiting(client, number, request, len(blocks))
            for block in blocks:
                self._wanted.setdefault(block.name, []).append(waiting)
            self._queue.extend((block, client.cached) for block in new)
            if not self._waiting:
                self._waits.notify_all()
            self._waiting[waiting] = None
            self._queued.notify_all()
        return True

    def close(self) -> Sequence[Running]:
        """Nothing is brought or answered from now on; the threads, which end as soon as what they are at has ended."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._waiting.clear()
            self._queued.notify_all()
            self._waits.notify_all()
            return *self._teller, *self._threads

    def _staff(self, new: int, most: int) -> bool:
        """Threads for so many more pieces, but no more than `most` that bring. False if there is none at all."""
        try:
            if not self._teller:
                self._teller.append(self._runtime.start(self._tell, "peer-server-tells"))
            while self._workers < most and self._idle < len(self._queue) + new:
                self._threads.append(self._runtime.start(self._work, "peer-server-brings"))
                self._workers += 1
                self._idle += 1
        except RuntimeError as error:  # no more threads
            log.warning("the peer server can't start a thread: %s", error)
        return self._workers > 0

    def _work(self) -> None:
        """A thread, counted as idle when it starts."""
        while True:
            with self._lock:
                while not self._queue:
                    if self._closed:
                        return
                    self._queued.wait()
                block, cached = self._queue.popleft()
                self._idle -= 1
            loaded, failure = self._load(block, cached)
            with self._lock:
                ended = []
                for waiting in self._wanted.pop(block.name):
                    if waiting.missing and not self._closed:
                        waiting.missing = 0 if failure else waiting.missing - 1
                        if not waiting.missing:
                            self._waiting.pop(waiting, None)
                            ended.append(waiting)
                self._answering += 1
            for waiting in ended:
                waiting.client.finish(waiting.number, waiting.request, failure)
            del loaded
            with self._lock:
                self._answering -= 1
                if self._workers > self._max_workers + self._answering:  # another came in its stead
                    self._workers -= 1
                    return
                self._idle += 1

    def _load(self, block: CacheBlock, cached: CachedChunks) -> tuple[object, Answer | None]:
        """What keeps it held, until it is answered; no answer: it was held a moment ago."""
        try:
            return cached.load(block), None
        except (CacheFull, MasterGone):
            return None, NotCached()
        except (ChunkStoreError, LocalFileError) as error:
            return None, Failed(str(error))
        except Exception as error:
            if type(error) not in self._surprises:
                self._surprises.add(type(error))
                log.exception("piece %s could not be brought for a peer", block.name)
            return None, Failed(f"unexpected: {type(error).__name__}")

    def _tell(self) -> None:
        with self._lock:
            while not self._closed:
                if not self._waiting:
                    self._waits.wait()
                    continue
                self._waits.wait(WORKING_S)
                if self._queue and not self._closed:
                    ended = [thread for thread in self._threads if thread.join(0.0)]
                    self._threads = [each for each in self._threads if each not in ended]
                    self._staff(0, self._max_workers + self._answering)
                waiting = list(self._waiting)
                self._lock.release()
                try:
                    for one in waiting:
                        one.client.report_working(one.number)
                finally:
                    self._lock.acquire()

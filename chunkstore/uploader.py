"""An uploader of sealed chunks: several threads, so that the fsyncs of chunks overlap.

Memory is bounded: `submit` blocks while more than `max_in_flight_bytes` are in flight. One thread
calls `deliver` for each durable chunk, in the order of submission (so that a path put twice keeps
its order).
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_writer import SealedChunk
from chunkstore.errors import BadSource
from chunkstore.object_keys import chunk_key
from chunkstore.stores.aimd import UPLOADS
from chunkstore.stores.object_store import Buffer, ObjectStore

MAX_UPLOADS: Final = UPLOADS.highest
"""The most uploads at once; a resilient store lets through what it bears (`adaptive_limit`)."""


class Uploader:
    """A pipeline from `submit` to `deliver`.

    Every later `submit` and `wait` raises the first failure. If a chunk's payload can no longer be
    read, `on_bad_source` is called for it in its turn and the other chunks continue; without
    `on_bad_source` this is a failure.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset_name: str,
        deliver: Callable[[SealedChunk], None],
        *,
        on_bad_source: Callable[[SealedChunk, BadSource], None] | None = None,
        threads: int = MAX_UPLOADS,
        max_in_flight_bytes: int = 64 << 20,
    ) -> None:
        self._store = store
        self._dataset_name = dataset_name
        self._deliver = deliver
        self._on_bad_source = on_bad_source
        self._limit = max_in_flight_bytes
        self._in_flight = 0
        self._change = threading.Condition()
        self._failure: BaseException | None = None
        self._pool = ThreadPoolExecutor(threads, "upload")
        self._order: queue.SimpleQueue[tuple[SealedChunk, Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._deliverer = threading.Thread(
            target=self._deliver_in_order, name="deliver", daemon=True
        )
        self._deliverer.start()

    def submit(self, chunk: SealedChunk) -> None:
        """Enqueue a chunk; return before it is stored."""
        size = _size(chunk)
        with self._change:
            while self._in_flight and self._in_flight + size > self._limit and not self._failure:
                self._change.wait()
            self.raise_failure()
            # The lock makes the delivery order equal to the order in which the chunks were
            # admitted.
            self._order.put((chunk, self._pool.submit(self._store_chunk, chunk)))
            self._in_flight += size

    def wait(self) -> None:
        """Wait until every submitted chunk has been delivered."""
        with self._change:
            while self._in_flight and not self._failure:
                self._change.wait()
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the threads after they have finished the chunks in flight.

        Raises nothing; a preceding `wait` reports failures.
        """
        self._pool.shutdown(wait=True)
        self._order.put(None)
        self._deliverer.join()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _store_chunk(self, chunk: SealedChunk) -> None:
        self._store.create(chunk_key(self._dataset_name, chunk.ref.id), _parts(chunk))

    def _deliver_in_order(self) -> None:
        while (item := self._order.get()) is not None:
            chunk, stored = item
            try:
                try:
                    stored.result()
                except BadSource as error:
                    if self._on_bad_source is None:
                        raise
                    self._on_bad_source(chunk, error)
                else:
                    if self._failure is None:
                        self._deliver(chunk)
            except BaseException as error:  # raised in the submitting thread
                self._failure = self._failure or error
            with self._change:
                self._in_flight -= _size(chunk)
                self._change.notify_all()


def _parts(chunk: SealedChunk) -> Iterable[Buffer]:
    """Return the parts of the object, repeatable for a retry of the store if the payload is."""
    if iter(chunk.payload) is chunk.payload:
        return itertools.chain([chunk.head], chunk.payload)
    return _Parts(chunk)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The repeatable parts of an object; a large file is read again in each iteration."""

    chunk: SealedChunk

    def __iter__(self) -> Iterator[Buffer]:
        return itertools.chain([self.chunk.head], self.chunk.payload)


def _size(chunk: SealedChunk) -> int:
    return len(chunk.head) + chunk.ref.payload_bytes

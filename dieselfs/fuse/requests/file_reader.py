"""Bytes of the dataset's files for READ requests: exactly the bytes of the range, or an error.

A short reply would truncate a file for its reader, and EROFS fills a short reply with zeros; both
are silent. So every length is checked, and an answer has all ranges or is an errno.

Cached bytes are answered at once. Other bytes are read by the same thread, which then replies, but
only when another thread receives in its place (`PendingReads`).

After a refused readahead the kernel asks at once for the single page that its reader waits for.
After an outage that lasted until the timeout, that would be the same wait a second time. So such a
failure is repeated as the answer for a moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.errors import Corrupt, Unavailable
from chunkstore.stores.read_turn import Payer, ReadTurn, reading
from dieselfs.cache.ports.block import is_whole
from dieselfs.fuse.requests.kernel_connection import Answer, Part, Pending
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.requests.read_failures import PathOf, ReadFailures

LONG_FAILURE_S: Final = 1.0
"""The time for which a failure is the answer, if the read took longer than this to fail."""
_READAHEAD_BYTES: Final = 16 << 10
"""The kernel's readahead in a blob behind EROFS: `fuse.mounts.readahead.NARROW_KIB`."""
_MISSED_CHUNKS: Final = 256
_MISSED_S: Final = 30.0
"""Two misses of a chunk within this time are of its reader, and no readahead in each epoch."""


class CachedSource(ChunkSource, Protocol):
    """A `ChunkSource` that can report without blocking what it has in memory."""

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        """Return what `read` would if that is in memory, else None. Never blocks."""
        ...

    def read_aside(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return what `read` would, without loading more than that into memory."""
        ...

    def discard(self, chunk: ChunkId) -> None:
        """Release a chunk in memory."""
        ...

    def statistics(self) -> Any:
        """Return a frozen dataclass of counters."""
        ...


class FileRange(NamedTuple):
    """Bytes [start, start + length) of one file, all inside the file."""

    file: FileExtent
    start: int
    length: int


Wanted: TypeAlias = FileRange | bytes | memoryview
"""A range to read, or known bytes, such as the zeros between two files of the blob."""
PayerOf: TypeAlias = Callable[[int], "Payer | None"]
"""A function that returns what pays for a thread's misses; None: what pays for the mount's own."""
Reply: TypeAlias = Callable[[Sequence[Part] | int], object]
"""A function that sends a late answer: parts, or an errno."""


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """READs of the dataset's bytes that this process answered, since the mount began."""

    bytes_read: int = 0
    thread_reads: int = 0
    """READs whose bytes were not all in memory."""
    waits: int = 0
    """READs of `thread_reads` that took longer than a millisecond."""
    waited_s: float = 0.0
    """Seconds of all READs of `thread_reads` together."""
    past_end: int = 0
    """READs of no bytes."""
    refused: int = 0
    """READs that failed before node memory was asked."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """READs that were answered with an error, by its name.

    The kernel asks twice and more for what one reader waits for.
    """


class FileReader:
    """The reader of the dataset's bytes. Thread-safe.

    `pending` stays the caller's, and serves this reader alone: its waits are this reader's.
    """

    def __init__(
        self,
        source: CachedSource,
        pending: PendingReads,
        is_prefetching: Callable[[], bool] = lambda: False,
        path_of: PathOf = lambda file: None,
        *,
        now: Callable[[], float] = time.monotonic,
        payer_of: PayerOf | None = None,
    ) -> None:
        """`path_of` is used for messages alone. `payer_of` says what pays for a caller's misses."""
        self._payer_of = payer_of
        self._source, self._pending = source, pending
        self.failures = ReadFailures(path_of)
        self._is_prefetching, self._now = is_prefetching, now
        self._missed_at: dict[ChunkId, float] = {}
        """When READs of chunks missed last, while a plan was prefetched; the oldest first."""
        self._lock = threading.Lock()
        self._bytes_read = self._thread_reads = self._past_end = self._refused = 0
        self._failed: dict[FileExtent, tuple[float, Unavailable]] = {}
        """Files whose last read took long to fail, and until when that failure is the answer."""

    def statistics(self) -> ReaderStatistics:
        """Return the counters since the mount began."""
        pending = self._pending.statistics()
        counts = self._bytes_read, self._thread_reads, pending.waits, pending.waited_s
        return ReaderStatistics(*counts, self._past_end, self._refused, self.failures.kinds())

    def answer(
        self, wanted: Sequence[Wanted], reply: Reply, subject: object = "-", caller: int = 0
    ) -> Answer:
        """Answer one READ: all its parts if they are in memory, else `Pending`.

        The work of a pending READ calls `reply`. Never blocks and never raises: an error becomes an
        errno, and a line in the log about the file, or about `subject` if its path is not known.
        `caller` is the thread that reads; 0: the kernel.
        """
        try:
            parts = self.peek_all(wanted)
        except Exception as error:
            return self.failures.errno(_first_file(wanted), subject, error)
        return parts if parts is not None else self._later(wanted, reply, subject, caller)

    def answer_file(
        self,
        file: FileExtent,
        start: int,
        size: int,
        reply: Reply,
        subject: object = "-",
        caller: int = 0,
    ) -> Answer:
        """Answer a READ of one file: bytes [start, start + size), as far as the file reaches.

        See `answer`.
        """
        length = min(size, file.length - start)
        if length <= 0:
            with self._lock:
                self._past_end += 1
            return ()
        try:
            data = self.peek(file, start, length)  # no list of ranges for the most frequent request
        except Exception as error:
            return self.failures.errno(file, subject, error)
        if data is not None:
            return [data]
        return self._later([FileRange(file, start, length)], reply, subject, caller)

    def peek(self, file: FileExtent, start: int, length: int) -> Part | None:
        """Return the bytes of a range inside the file if they are in memory, else None.

        Never blocks.
        """
        data = self._source.peek(file, start, length)
        if data is not None:
            self._count(file, data, length)
        return data

    def read(self, file: FileExtent, start: int, length: int, *, loads: bool = True) -> Part:
        """Return the bytes of a range inside the file. Blocks. Raises `ChunkStoreError`.

        With `loads`, its whole chunk is loaded into memory.
        """
        begin = time.monotonic()
        self._check_failed(file, begin)
        try:
            source = self._source
            data = (source.read if loads else source.read_aside)(file, start, length)
        except Unavailable as error:
            self._note_failure(file, begin, error)
            raise
        self._count(file, data, length)
        return data

    def note_refused(self) -> None:
        """Count a READ that failed before it came here."""
        with self._lock:
            self._refused += 1

    def peek_all(self, wanted: Sequence[Wanted]) -> list[Part] | None:
        """Return all parts of an answer if they are in memory, else None; count nothing.

        Never blocks. Raises `ChunkStoreError`.
        """
        parts: list[Part] = []
        total = 0
        for item in wanted:
            if isinstance(item, FileRange):
                data = self._source.peek(*item)
                if data is None:
                    return None
                _require_all(item.file, data, item.length)
                total += item.length
                parts.append(data)
            else:
                parts.append(item)
        with self._lock:
            self._bytes_read += total
        return parts

    def _later(
        self, wanted: Sequence[Wanted], reply: Reply, subject: object, caller: int
    ) -> Answer:
        with self._lock:
            self._thread_reads += 1
        if self._payer_of is None:
            work = self._pending.submit(lambda: reply(self._late_answer(wanted, subject)))
        else:
            payer_of = self._payer_of

            def paid() -> None:
                with reading(ReadTurn(payer=payer_of(caller))):
                    reply(self._late_answer(wanted, subject))

            work = self._pending.submit(paid)
        return Pending(work)

    def _late_answer(self, wanted: Sequence[Wanted], subject: object) -> Sequence[Part] | int:
        """Return a late answer; a small READ loads the chunk of its first range at most.

        The kernel only reads ahead in the other ranges, beyond a chunk's end too. Loading the next
        chunk for that would cost a known order 30 % more fetches. A larger READ has many files, so
        one chunk is cheaper than their ranges.
        """
        ranges = [item for item in wanted if isinstance(item, FileRange)]
        is_small = sum(item.length for item in ranges) <= _READAHEAD_BYTES
        first = ranges[0].file.chunk if ranges else None
        loads_first = first is not None and (not is_small or self._loads(first))
        parts: list[Part] = []
        for item in wanted:
            if isinstance(item, FileRange):
                loads = loads_first if item.file.chunk == first else not is_small
                try:
                    parts.append(self.read(*item, loads=loads))
                except Exception as error:
                    return self.failures.errno(item.file, subject, error)
            else:
                parts.append(item)
        return parts

    def _loads(self, chunk: ChunkRef) -> bool:
        """Return True if a READ that misses has its whole chunk loaded.

        While a plan is prefetched, the prefetcher loads the chunks that readers need. So the first
        miss is most likely a readahead of the kernel, which begins in a chunk at times.
        """
        if not is_whole(chunk) or not self._is_prefetching():
            return True
        now = self._now()
        with self._lock:
            missed_at = self._missed_at.pop(chunk.id, float("-inf"))
            self._missed_at[chunk.id] = now
            if len(self._missed_at) > _MISSED_CHUNKS:
                del self._missed_at[next(iter(self._missed_at))]
        return now - missed_at < _MISSED_S

    def _count(self, file: FileExtent, data: Part, length: int) -> None:
        _require_all(file, data, length)
        with self._lock:
            self._bytes_read += length

    def _note_failure(self, file: FileExtent, begin: float, error: Unavailable) -> None:
        now = time.monotonic()
        if now - begin > LONG_FAILURE_S:
            with self._lock:
                self._failed[file] = now + LONG_FAILURE_S, error

    def _check_failed(self, file: FileExtent, now: float) -> None:
        if not self._failed:
            return
        with self._lock:
            self._failed = {key: kept for key, kept in self._failed.items() if kept[0] > now}
            if file in self._failed:
                self._refused += 1
                raise Unavailable(str(self._failed[file][1]))


def _first_file(wanted: Sequence[Wanted]) -> FileExtent | None:
    return next((item.file for item in wanted if isinstance(item, FileRange)), None)


def _require_all(file: FileExtent, data: Part, length: int) -> None:
    if len(data) != length:
        raise Corrupt(f"read {len(data)} bytes instead of {length} of chunk {file.chunk.id}")

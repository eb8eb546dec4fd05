"""An SSD between readers and a slow store, which can only help: it answers in time, or it is not asked.

Every access runs in a thread that may be lost, under a deadline. What is wrong with the SSD (errors, late answers, a folder that has gone, answers slower
than the store's) takes it out of service (`health`); a probe in the background brings it back. What is to be written waits in a bounded queue, and is forgotten if it
has no place there.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import lmdb

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.call_threads import CallThreads, NoThread
from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import Admission, AdmitAll
from chunkstore.ssd.health import TierHealth
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.segment_index import UNSOUND
from chunkstore.ssd.segment_store import SegmentStore

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S: Final = 0.25
"""Of an access, and 20 ms a MiB: 50 MB/s."""
_DEADLINE_S_PER_BYTE: Final = 0.02 / (1 << 20)
_WHOLE_BYTES: Final = 4 << 20
"""Of a chunk, as a rule."""
_OPEN_TIMEOUT_S: Final = 30.0
_WRITE_TIMEOUT_S: Final = 10.0
TEND_INTERVAL_S: Final = 1.0
_RETRY_INTERVAL_S: Final = 0.1
QUEUE_BYTES: Final = 64 << 20
"""Fetched and not written yet."""
_NO_ROOM_S: Final = 5.0
"""What a dataset has no room for, since others are pinned or its quota is too small, is not fetched in vain for so long."""
_THREADS: Final = 64
_WRONG: Final = (OSError, lmdb.Error, NoThread)
_PROBE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """Of one process since it opened the tier, unless said otherwise."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    """While in service."""
    bypassed: int = 0
    """Reads while it was out of service."""
    written_bytes: int = 0
    not_admitted: int = 0
    """Chunks."""
    not_written: int = 0
    """Chunks that had no place in the queue, or on the SSD."""
    failures: int = 0
    """Times that it went out of service."""
    in_service: bool = False
    """As of now."""
    reason: str = ""
    """Of the last failure."""


@dataclass(frozen=True, slots=True)
class CacheInsert:
    """A run of segments to be written."""

    dataset: bytes
    chunk: bytes
    first: int
    data: memoryview
    is_end: bool


class SsdTier:
    """Thread-safe; a forked child opens its own. Pickles if its parts do.

    `open_segments` may block and fail; it is called in the background, again after failures.
    """

    def __init__(
        self,
        open_segments: Callable[[], SegmentStore],
        folder: Path,
        admission: Admission | None = None,
    ) -> None:
        self._open = open_segments
        self._folder = folder
        self.admission = admission or AdmitAll()
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[type[SsdTier], tuple[Any, ...]]:
        return type(self), (self._open, self._folder, self.admission)

    def renew(self) -> None:
        self._segments: SegmentStore | None = None
        self._health = TierHealth(time.monotonic)
        self._threads = CallThreads("ssd", _THREADS)
        self._changed = threading.Condition()
        self._queue: deque[CacheInsert] = deque()
        self._queued_bytes = 0
        self._worker: threading.Thread | None = None
        self._closed = False
        self._tended_at = float("-inf")
        self._index_unsound = False
        self._unnamed: list[DatasetRef] = []
        self._no_room_until: dict[bytes, float] = {}
        """By dataset."""
        self._allowance: RangeAllowance | None = None
        self._hits = self._hit_bytes = self._misses = self._bypassed = self._warmed_bytes = 0
        self._written_bytes = self._not_admitted = self._not_written = 0

    def start(self) -> None:
        """Open it now, in the background; else the first access does."""
        with self._changed:
            self._start()

    def wait_until_open(self, timeout_s: float) -> bool:
        self.start()
        with self._changed:
            return self._changed.wait_for(lambda: self._segments is not None, timeout_s)

    def wait_until_open_or_failed(self, timeout_s: float) -> bool:
        """Whether it is open; returns as soon as it is, or can't be opened."""
        self.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._segments is not None or not self._health.is_up, timeout_s
            )
        return self.segments is not None

    @property
    def segments(self) -> SegmentStore | None:
        """While it is in service. Its calls block and raise what an SSD makes them: see `call`."""
        return self._segments if self._health.is_up else None

    def is_in_service(self) -> bool:
        """Asked before a read, which is else counted as one past the tier: 0.2 µs."""
        if self._segments is not None and self._health.is_up:
            return True
        self._bypassed += 1
        if self._worker is None:
            self.start()
        return False

    def register(self, dataset: DatasetRef) -> None:
        """Have it noted what a dataset is called, for those who look at the tier."""
        self._unnamed.append(dataset)
        with self._changed:
            self._changed.notify_all()

    def read(
        self,
        chunk: bytes,
        start: int,
        length: int | None,
        *,
        dataset: bytes,
        verified: bool = True,
    ) -> memoryview | None:
        """Bytes of a chunk's object, the whole of it for None; None if they are not to be had from here, in time. For `verified` see `SegmentStore.read`.

        It is counted for the `dataset`.
        """
        segments = self._segments
        if segments is None or not self.is_in_service():
            return None
        began = time.monotonic()
        if length is None:
            read = partial(segments.read_whole, chunk, verified=verified)
        else:
            read = partial(segments.read, chunk, start, length, verified=verified)
        found: memoryview | None = None
        try:
            found = read(waits=False)  # no thread is needed, which costs as much as the read
        except BlockingIOError:
            found = self.call(read, _WHOLE_BYTES if length is None else length)
        except _WRONG as error:
            self._failed(error)
        if found is None:
            self._misses += 1
            segments.counts.miss(dataset)
            return None
        self._hits += 1
        segments.counts.hit(dataset, len(found))
        self._hit_bytes += len(found)
        if self._health.hit_took(time.monotonic() - began, len(found)):
            self._out_of_service("it is slower than the store")
        return found

    def store_took(self, seconds: float, length: int) -> None:
        """What a read of the store takes, to be compared."""
        self._health.store_took(seconds, length)

    def admits(self, dataset: bytes, chunk: bytes, *, waits: bool = False) -> bool:
        """Whether a chunk that was missed is to be fetched for it, or offered. `waits`: by who waits for room in the queue."""
        if self._segments is None or not self._health.is_up:
            return False
        is_full = not waits and self._queued_bytes + _WHOLE_BYTES > QUEUE_BYTES
        if is_full or self._has_no_room(dataset):
            self._not_written += 1
            return False
        admitted = self.admission.admits(dataset, chunk)
        self._not_admitted += not admitted
        return admitted

    def may_warm(self, length: int) -> bool:
        """Whether a chunk may be fetched because a part of this length was missed: not if that is mostly in vain, see `RangeAllowance`."""
        return self._allowance is not None and self._allowance.grants(length, _WHOLE_BYTES)

    def warmed(self, length: int) -> None:
        """So much was fetched for it, which nobody has asked for yet."""
        self._warmed_bytes += length

    def insert(self, insert: CacheInsert, patience_s: float = 0.0) -> bool:
        """Have it written in the background; False if the queue has no room for it within the time."""
        most = QUEUE_BYTES - len(insert.data)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queued_bytes <= most, patience_s)
            if self._closed or self._queued_bytes > most:
                self._not_written += 1
                return False
            self._queue.append(insert)
            self._queued_bytes += len(insert.data)
            self._start()
            self._changed.notify_all()
        return True

    def keep(self, insert: CacheInsert) -> bool | None:
        """Write it now, in the caller's time; False if the SSD has no room for it, None if it failed."""
        segments = self.segments
        if segments is None:
            return None
        kept = self.call(
            lambda: segments.append(
                insert.dataset, insert.chunk, insert.first, insert.data, insert.is_end
            ),
            len(insert.data),
            _WRITE_TIMEOUT_S,
        )
        if kept is False:
            self._no_room_until[insert.dataset] = time.monotonic() + _NO_ROOM_S
        with self._changed:
            if kept:
                self._written_bytes += len(insert.data)
            else:
                self._not_written += 1
        return kept

    def _has_no_room(self, dataset: bytes) -> bool:
        return self._no_room_until.get(dataset, 0.0) > time.monotonic()

    def forget(self, chunk: bytes) -> bool:
        """What came from here of a chunk was wrong; whether anything was held of it."""
        segments = self.segments
        return segments is not None and bool(self.call(lambda: segments.forget(chunk), 0))

    def wait_until_written(self, timeout_s: float) -> bool:
        """Whether all that was offered is written, or was given up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, timeout_s)

    def call(self, access: Callable[[], T], length: int, timeout_s: float = DEADLINE_S) -> T | None:
        """The result of an access of so many bytes; None if it fails or is late, which takes the tier out of service."""
        timeout_s += _DEADLINE_S_PER_BYTE * length
        try:
            return self._threads.run(access, timeout_s)
        except TimeoutError:
            self._out_of_service(f"it did not answer within {timeout_s:.2f} s")
        except _WRONG as error:
            self._failed(error)
        return None

    def _failed(self, error: Exception) -> None:
        self._index_unsound |= isinstance(error, UNSOUND)
        self._out_of_service(f"{type(error).__name__}: {error}")

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            self._hits,
            self._hit_bytes,
            self._misses,
            self._bypassed,
            self._written_bytes,
            self._not_admitted,
            self._not_written,
            self._health.failures,
            self._segments is not None and self._health.is_up,
            self._health.reason,
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """What is queued is forgotten."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()
            worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        segments, self._segments = self._segments, None
        if segments is not None and (worker is None or not worker.is_alive()):
            try:
                self._threads.run(segments.close, timeout_s)
            except (TimeoutError, *_WRONG) as error:
                log.debug("the tier did not close in order: %s", error)

    # In the background, in one thread.

    def _start(self) -> None:
        """With the condition held."""
        if self._worker is None and not self._closed:
            self._worker = threading.Thread(target=self._work, name="ssd-tier", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while not self._closed:
            try:
                self._look()
                insert = self._next()
                if insert is not None:
                    self._write(insert)
            except Exception as error:  # whatever it is, readers do without
                log.exception("the SSD tier %s has failed", self._folder)
                self._failed(error)

    def _look(self) -> None:
        """Whatever is due."""
        segments, now = self._segments, time.monotonic()
        if segments is None:
            self._open_now()
        elif not self._health.is_up:
            if self._health.may_probe():
                self._probe()
        elif now - self._tended_at > TEND_INTERVAL_S:
            self._tended_at = now
            self.call(segments.tend, 0, _OPEN_TIMEOUT_S)
        if segments is not None and self._health.is_up:
            self._note_names()

    def _note_names(self) -> None:
        limits = LimitsFolder(self._folder)
        while self._unnamed:
            dataset = self._unnamed.pop()
            self.call(partial(limits.name, dataset.id, dataset.name), 0)

    def _next(self) -> CacheInsert | None:
        with self._changed:
            usable = self._segments is not None and self._health.is_up
            if usable and self._queue:
                return self._queue[0]
            if not usable:
                self._not_written += len(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                self._changed.notify_all()
            if not self._closed:
                self._changed.wait(TEND_INTERVAL_S if usable else _RETRY_INTERVAL_S)
            return None

    def _write(self, insert: CacheInsert) -> None:
        try:
            self.keep(insert)
        finally:
            with self._changed:
                if self._queue and self._queue[0] is insert:
                    self._queue.popleft()
                    self._queued_bytes -= len(insert.data)
                self._changed.notify_all()

    def _open_now(self) -> None:
        if not self._health.is_up and not self._health.may_probe():
            return
        try:
            segments = self._threads.run(self._open, _OPEN_TIMEOUT_S)
        except (TimeoutError, ValueError, *_WRONG) as error:
            self._out_of_service(f"it can't be opened: {error or type(error).__name__}")
            return
        self._health.recovered()
        self._allowance = RangeAllowance(
            segments.budget_bytes, lambda: self._warmed_bytes - self._hit_bytes
        )
        with self._changed:
            self._segments = None if self._closed else segments
            self._changed.notify_all()
        if self._closed:
            segments.close()
        else:
            self._threads.start(segments.sweep, SimpleQueue())  # nobody waits for it

    def _probe(self) -> None:
        """Write, read back, compare; a folder that has gone, or was made anew, is opened again."""
        try:
            self._threads.run(self._try_out, _OPEN_TIMEOUT_S)
        except (TimeoutError, ValueError, *_WRONG) as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            return
        log.warning("the SSD tier %s is in service again", self._folder)
        self._health.recovered()

    def _try_out(self) -> None:
        segments = self._segments
        if segments is None:
            return
        if self._index_unsound or not segments.is_there:
            segments.reopen(anew=self._index_unsound)
            self._index_unsound = False
        path, data = self._folder / f".probe.{os.getpid()}", secrets.token_bytes(_PROBE_BYTES)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if os.pread(fd, _PROBE_BYTES, 0) != data:
                raise OSError("it gives back other bytes than were written")
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _out_of_service(self, reason: str) -> None:
        if self._health.failed(reason):
            log.warning("the SSD tier %s is out of service: %s", self._folder, reason)
        with self._changed:
            self._start()
            self._changed.notify_all()

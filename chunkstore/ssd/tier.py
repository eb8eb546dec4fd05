"""An SSD between readers and a slow store that never delays a read beyond a deadline.

A fault of the SSD (errors, late answers, a missing folder, answers slower than the store's) takes
the tier out of service (`ssd_service`). Inserts wait in a bounded queue (`insert_queue`), and are
dropped if it is full. What cache policies need is in `tier_policies`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import Admission, AdmitAll
from chunkstore.ssd.insert_queue import CacheInsert, InsertQueue
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.reader_tags import ReaderTags
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.segments import USUAL_CHUNK_BYTES
from chunkstore.ssd.ssd_service import OPEN_TIMEOUT_S, WRONG, SsdService
from chunkstore.ssd.tier_policies import TierPolicies
from chunkstore.ssd.tier_statistics import TierStatistics

if TYPE_CHECKING:
    from chunkstore.ssd.policy_runner import PolicyRunner

log = logging.getLogger(__name__)

T = TypeVar("T")

_WRITE_TIMEOUT_S: Final = 10.0
TEND_INTERVAL_S: Final = 1.0
_RETRY_INTERVAL_S: Final = 0.1
_NO_ROOM_S: Final = 5.0
"""Seconds in which nothing is fetched for a dataset that found no room.

A dataset finds no room if other datasets are pinned or its quota is too small; a fetch would be
wasted.
"""


class SsdTier:
    """The SSD tier of a process. Thread-safe; pickles if its parts do.

    A forked child opens its own tier. `open_segments` may block and fail; it is called in the
    background, and again after failures.
    """

    def __init__(
        self,
        open_segments: Callable[[], SegmentStore],
        folder: Path,
        admission: Admission | None = None,
        choice: PolicyChoice | None = None,
    ) -> None:
        """`choice` names the cache policies, unless the folder's `PolicyFile` does.

        `admission` decides without a policy.
        """
        self._open = open_segments
        self._folder = folder
        self._choice = choice or PolicyChoice()
        self.policies = TierPolicies(folder, admission or AdmitAll(), self._choice)
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[type[SsdTier], tuple[Any, ...]]:
        return type(self), (self._open, self._folder, self.policies.admission, self._choice)

    def renew(self) -> None:
        """Start with a closed tier and zero counts; called at first and in a forked child."""
        self._changed = threading.Condition()
        self._service = SsdService(
            self._open,
            self._folder,
            self._changed,
            on_open=self._limit_warming,
            on_failure=self._start,
        )
        self._queue = InsertQueue(self._changed)
        self._worker: threading.Thread | None = None
        self._closed = False
        self._tended_at = float("-inf")
        self._unnamed: list[DatasetRef] = []
        self._no_room_until: dict[bytes, float] = {}
        """Dataset -> the time until which nothing is fetched for it."""
        self._allowance: RangeAllowance | None = None
        self._hits = self._hit_bytes = self._misses = self._bypassed = self._warmed_bytes = 0
        self._written_bytes = self._not_admitted = self._not_written = 0
        self.policies.renew()

    def start(self) -> None:
        """Open the tier now, in the background; without this call the first access opens it."""
        with self._changed:
            self._start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Start the tier; return True as soon as it is open, and False after `timeout_s`."""
        self.start()
        with self._changed:
            return self._changed.wait_for(lambda: self._service.opened is not None, timeout_s)

    def wait_until_open_or_failed(self, timeout_s: float) -> bool:
        """Return whether the tier is open, as soon as it is open or could not be opened."""
        self.start()
        with self._changed:
            service = self._service
            self._changed.wait_for(
                lambda: service.opened is not None or not service.health.is_up, timeout_s
            )
        return self.segments is not None

    @property
    def runner(self) -> PolicyRunner | None:
        """The policy runner; None while there is no policy, shadow policy or observer."""
        return self.policies.runner

    @property
    def segments(self) -> SegmentStore | None:
        """The segment store while the tier is in service, else None.

        Its calls block, and raise what a faulty SSD makes them raise: use `call`.
        """
        return self._service.segments

    def is_in_service(self) -> bool:
        """Return whether the tier can be read; if not, count the read as bypassed. 0.2 µs.

        Call it before a read.
        """
        if self._service.opened is not None and self._service.health.is_up:
            return True
        self._bypassed += 1
        if self._worker is None:
            self.start()
        return False

    def register(self, dataset: DatasetRef) -> None:
        """Record the dataset's name in the background, for users who list the tier's content."""
        self.policies.names[dataset.id] = dataset.name
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
        tags: ReaderTags | None = None,
        size: int | None = None,
        told: bool = False,
        again: bool = False,
    ) -> memoryview | None:
        """Return bytes of a chunk's object, or the whole object if `length` is None.

        Return None if the tier cannot deliver them in time. The read is counted for `dataset`. See
        `SegmentStore.read` for `verified`. A cache policy learns of the reader by `tags`; `size` is
        that of the object, if it is known. `told`: the policy knows of the request, by
        `TierPolicies.asked`. `again`: bytes around those that a read has just missed; a miss counts
        once.
        """
        service = self._service
        segments = service.opened
        if segments is None or not self.is_in_service():
            return None
        began = time.monotonic()
        if length is None:
            read = partial(segments.read_whole, chunk, verified=verified)
        else:
            read = partial(segments.read, chunk, start, length, verified=verified)
        found: memoryview | None = None
        try:
            found = read(waits=False)  # no thread is needed, which would cost as much as the read
        except BlockingIOError:
            found = service.call(read, USUAL_CHUNK_BYTES if length is None else length)
        except WRONG as error:
            service.failed(error)
        if found is None and again:
            return None
        if self.policies.runner is not None:
            wanted = len(found) if length is None and found is not None else length
            hit = found is not None
            self.policies.read(dataset, chunk, start, wanted, tags, size, hit=hit, told=told)
        if found is None:
            self._misses += 1
            segments.counts.miss(dataset)
            return None
        self._hits += 1
        segments.counts.hit(dataset, len(found))
        self._hit_bytes += len(found)
        if service.health.hit_took(time.monotonic() - began, len(found)):
            service.out_of_service("reads from it take longer than reads from the store")
        return found

    def store_took(self, seconds: float, length: int) -> None:
        """Record the duration of a read from the store, for comparison with the SSD."""
        self._service.health.store_took(seconds, length)

    def admits(
        self,
        dataset: bytes,
        chunk: bytes,
        *,
        waits: bool = False,
        start: int = 0,
        tags: ReaderTags | None = None,
        size: int | None = None,
    ) -> bool:
        """Return whether a missed chunk is to be fetched for the tier, or inserted.

        A caller that waits for room in the queue sets `waits`. `start` is a byte of the object that
        is missed; see `read` for `tags` and `size`.
        """
        segments = self._service.segments
        if segments is None:
            return False
        if not (waits or self._queue.has_room) or self._has_no_room(dataset, segments):
            self._not_written += 1
            return False
        admitted = self.policies.admits(dataset, chunk, start, tags, size)
        self._not_admitted += not admitted
        return admitted

    def may_warm(self, length: int) -> bool:
        """Return whether a chunk may be fetched because a part of `length` bytes was missed.

        The answer is False if such fetches are mostly wasted, see `RangeAllowance`.
        """
        return self._allowance is not None and self._allowance.grants(length, USUAL_CHUNK_BYTES)

    def warmed(
        self,
        length: int,
        *,
        dataset: bytes | None = None,
        chunk: bytes = b"",
        tags: ReaderTags | None = None,
    ) -> None:
        """Record that the tier fetched `length` bytes that no reader has asked for yet."""
        self._warmed_bytes += length
        if dataset is not None:
            self.policies.filled(dataset, chunk, length, tags)

    def insert(self, insert: CacheInsert, patience_s: float = 0.0) -> bool:
        """Queue an insert for the background; return False if the queue has no room in time."""
        if not self._queue.put(insert, patience_s):
            with self._changed:
                self._not_written += 1
            return False
        self.start()
        return True

    def keep(self, insert: CacheInsert) -> bool | None:
        """Write an insert now, in the caller's thread.

        Return False if the SSD has no room for it, and None if the write failed.
        """
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
        if kept:
            start = insert.first * segments.segment_bytes
            self.policies.written(insert.dataset, insert.chunk, start, len(insert.data))
        return kept

    def _has_no_room(self, dataset: bytes, segments: SegmentStore) -> bool:
        is_refused = self._no_room_until.get(dataset, 0.0) > time.monotonic()
        return is_refused or dataset in segments.full

    def held_bytes(self, dataset: bytes) -> int:
        """Return the bytes of a dataset that are cached, as of the last second; 0 if not open."""
        segments = self._service.opened
        return 0 if segments is None else segments.held_bytes(dataset)

    @property
    def region_bytes(self) -> int:
        """The size of a region, the unit of quotas; 0 if the tier is not open."""
        segments = self._service.opened
        return 0 if segments is None else segments.region_bytes

    def taken_bytes(self, dataset: bytes) -> int:
        """Return the size of the regions in which `held_bytes` are; 0 if not open."""
        segments = self._service.opened
        return 0 if segments is None else segments.taken_bytes(dataset)

    def needed_bytes(self, content_bytes: int) -> int:
        """Return the size of regions that hold so many bytes of a dataset, if it is open."""
        segments = self._service.opened
        return content_bytes if segments is None else segments.needed_bytes(content_bytes)

    def forget(self, chunk: bytes) -> bool:
        """Drop the segments of a damaged chunk; return whether there were any."""
        segments = self.segments
        return segments is not None and bool(self.call(lambda: segments.forget(chunk), 0))

    def wait_until_written(self, timeout_s: float) -> bool:
        """Return whether the queue was emptied in time: each insert was written or given up."""
        return self._queue.wait_until_empty(timeout_s)

    def call(
        self, access: Callable[[], T], length: int, timeout_s: float | None = None
    ) -> T | None:
        """Return the result of an access to `length` bytes, within `DEADLINE_S` by default.

        Return None if it fails or is late, which takes the tier out of service.
        """
        return self._service.call(access, length, timeout_s)

    def statistics(self) -> TierStatistics:
        """Return the current statistics."""
        health = self._service.health
        return TierStatistics(
            self._hits,
            self._hit_bytes,
            self._misses,
            self._bypassed,
            self._written_bytes,
            self._not_admitted,
            self._not_written,
            health.failures,
            self._service.segments is not None,
            health.reason,
            self.policies.statistics(),
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """Close the tier; queued inserts are dropped."""
        with self._changed:
            self._closed = True
            self._service.end()
            self._queue.close()
            worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        self._service.close(timeout_s, is_idle=worker is None or not worker.is_alive())

    # The methods below run in one background thread.

    def _start(self) -> None:
        """Start the worker; the caller holds the condition."""
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
            except Exception as error:  # readers do without the tier, whatever the error is
                log.exception("the SSD tier %s failed unexpectedly", self._folder)
                self._service.failed(error)

    def _look(self) -> None:
        """Do what is due: open, probe, tend or record names."""
        service, now = self._service, time.monotonic()
        segments = service.opened
        if segments is None or not service.health.is_up:
            service.restore()
        elif now - self._tended_at > TEND_INTERVAL_S:
            self._tended_at = now
            self.call(segments.tend, 0, OPEN_TIMEOUT_S)
            self.policies.obey_file(self.call)
            self.policies.learn_budget(segments, self.call)
        if segments is not None and segments.policy is not self.policies.runner:
            segments.policy = self.policies.runner
        self.policies.tend(self.segments, self.call)
        if segments is not None and service.health.is_up:
            self._note_names()

    def _note_names(self) -> None:
        limits = LimitsFolder(self._folder)
        while self._unnamed:
            dataset = self._unnamed.pop()
            self.call(partial(limits.name, dataset.id, dataset.name), 0)

    def _next(self) -> CacheInsert | None:
        with self._changed:
            usable = self._service.segments is not None
            if not usable:
                self._not_written += self._queue.drop()
            first = self._queue.first()
            if first is not None:
                return first
            if not self._closed:
                self._changed.wait(TEND_INTERVAL_S if usable else _RETRY_INTERVAL_S)
            return None

    def _write(self, insert: CacheInsert) -> None:
        try:
            self.keep(insert)
        finally:
            self._queue.done(insert)

    def _limit_warming(self, segments: SegmentStore) -> None:
        """Limit what is fetched because parts were missed, by the size of the tier."""
        self._allowance = RangeAllowance(
            segments.budget_bytes, lambda: self._warmed_bytes - self._hit_bytes
        )

"""An SSD between readers and a slow store that never delays a read beyond a deadline.

Every access runs under a deadline, in a thread that may hang for ever. A fault of the SSD (errors,
late answers, a missing folder, answers slower than the store's) takes the tier out of service
(`health`); a probe in the background puts it back. Inserts wait in a bounded queue and are dropped
if the queue is full.

A tier with a cache policy has a `PolicyRunner`, to which it tells each read. Without one, a read
costs a comparison more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.call_threads import CallThreads, NoThread
from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import Admission, AdmitAll
from chunkstore.ssd.health import TierHealth
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.policy_choice import PolicyChoice, PolicyFile
from chunkstore.ssd.policy_statistics import PoliciesStatistics, policies_statistics
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.reader_tags import ReaderTags, dataset_tags, decided_at_once
from chunkstore.ssd.segment_index import UNSOUND
from chunkstore.ssd.segment_store import SegmentStore

if TYPE_CHECKING:
    from chunkstore.ssd.policies.jobs import JobSpecification
    from chunkstore.ssd.policy_runner import ChunkRead, Observer, PolicyRunner

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 0.25
"""Seconds until an access is late, plus 20 ms a MiB (50 MB/s)."""
_DEADLINE_S_PER_BYTE: Final = 0.02 / (1 << 20)
_WHOLE_BYTES: Final = 4 << 20
"""The usual size of a chunk."""
_OPEN_TIMEOUT_S: Final = 30.0
_WRITE_TIMEOUT_S: Final = 10.0
TEND_INTERVAL_S: Final = 1.0
_RETRY_INTERVAL_S: Final = 0.1
QUEUE_BYTES: Final = 64 << 20
"""The most bytes that are fetched and not written yet."""
_NO_ROOM_S: Final = 5.0
"""Seconds in which nothing is fetched for a dataset that found no room.

A dataset finds no room if other datasets are pinned or its quota is too small; a fetch would be
wasted.
"""
_THREADS: Final = 64
_WRONG: Final = (OSError, lmdb.Error, NoThread)


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """The statistics of one process since it opened the tier, unless noted otherwise."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    """Misses while the tier is in service."""
    bypassed: int = 0
    """Reads while the tier is out of service."""
    written_bytes: int = 0
    not_admitted: int = 0
    """Chunks that the admission policy refused."""
    not_written: int = 0
    """Chunks for which the queue or the SSD had no room."""
    failures: int = 0
    """The number of times that the tier went out of service."""
    in_service: bool = False
    """True if the tier is in service now."""
    reason: str = ""
    """The reason for the last failure."""
    policy: PoliciesStatistics | None = None
    """What the cache policies have decided; None without one."""


@dataclass(frozen=True, slots=True)
class CacheInsert:
    """A run of segments to be written."""

    dataset: bytes
    chunk: bytes
    first: int
    data: memoryview
    is_end: bool


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
        self.admission = admission or AdmitAll()
        self._choice = choice or PolicyChoice()
        self._names: dict[bytes, str] = {}
        """The names of registered datasets, by id."""
        self._observe: Observer | None = None
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[type[SsdTier], tuple[Any, ...]]:
        return type(self), (self._open, self._folder, self.admission, self._choice)

    def renew(self) -> None:
        """Start with a closed tier and zero counts; called at first and in a forked child."""
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
        """Dataset -> the time until which nothing is fetched for it."""
        self._allowance: RangeAllowance | None = None
        self._hits = self._hit_bytes = self._misses = self._bypassed = self._warmed_bytes = 0
        self._written_bytes = self._not_admitted = self._not_written = 0
        self._default_tags: dict[bytes, ReaderTags] = {}
        self.runner: PolicyRunner | None = None
        """The policy runner; None while there is no policy, shadow policy or observer."""
        self._observe = None
        self._policy_file = PolicyFile(self._folder)
        self._on_policy: list[Callable[[], object]] = []
        self._chosen = PolicyChoice()
        self._choose(self._choice)

    def start(self) -> None:
        """Open the tier now, in the background; without this call the first access opens it."""
        with self._changed:
            self._start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Start the tier; return True as soon as it is open, and False after `timeout_s`."""
        self.start()
        with self._changed:
            return self._changed.wait_for(lambda: self._segments is not None, timeout_s)

    def wait_until_open_or_failed(self, timeout_s: float) -> bool:
        """Return whether the tier is open, as soon as it is open or could not be opened."""
        self.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._segments is not None or not self._health.is_up, timeout_s
            )
        return self.segments is not None

    @property
    def segments(self) -> SegmentStore | None:
        """The segment store while the tier is in service, else None.

        Its calls block, and raise what a faulty SSD makes them raise: use `call`.
        """
        return self._segments if self._health.is_up else None

    def is_in_service(self) -> bool:
        """Return whether the tier can be read; if not, count the read as bypassed. 0.2 µs.

        Call it before a read.
        """
        if self._segments is not None and self._health.is_up:
            return True
        self._bypassed += 1
        if self._worker is None:
            self.start()
        return False

    def register(self, dataset: DatasetRef) -> None:
        """Record the dataset's name in the background, for users who list the tier's content."""
        self._names[dataset.id] = dataset.name
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
        that of the object, if it is known. `told`: the policy knows of the request (`asked`).
        `again`: bytes around those that a read has just missed; a miss counts once.
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
            found = read(waits=False)  # no thread is needed, which would cost as much as the read
        except BlockingIOError:
            found = self.call(read, _WHOLE_BYTES if length is None else length)
        except _WRONG as error:
            self._failed(error)
        if found is None and again:
            return None
        runner = self.runner
        if runner is not None and (tags is None or tags.may_keep):
            wanted = len(found) if length is None and found is not None else length
            asked = self._chunk_read(dataset, chunk, start, wanted, tags, size)
            (runner.looked_up if told else runner.requested)(asked, hit=found is not None)
        if found is None:
            self._misses += 1
            segments.counts.miss(dataset)
            return None
        self._hits += 1
        segments.counts.hit(dataset, len(found))
        self._hit_bytes += len(found)
        if self._health.hit_took(time.monotonic() - began, len(found)):
            self._out_of_service("reads from it take longer than reads from the store")
        return found

    def asked(
        self, dataset: bytes, chunk: bytes, start: int, length: int, tags: ReaderTags, size: int
    ) -> None:
        """Tell a cache policy of a request that memory in front of the tier may answer.

        The SSD is then read, if at all, with `told`: one read may be for several requests.
        """
        runner = self.runner
        if runner is not None and tags.may_keep:
            runner.asked(self._chunk_read(dataset, chunk, start, length, tags, size), hit=False)

    def store_took(self, seconds: float, length: int) -> None:
        """Record the duration of a read from the store, for comparison with the SSD."""
        self._health.store_took(seconds, length)

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
        if self._segments is None or not self._health.is_up:
            return False
        is_full = not waits and self._queued_bytes + _WHOLE_BYTES > QUEUE_BYTES
        if is_full or self._has_no_room(dataset):
            self._not_written += 1
            return False
        runner = self.runner
        if tags is not None and not tags.may_keep:
            admitted = False
        elif runner is None:
            admitted = self.admission.admits(dataset, chunk)
        else:
            asked = self._chunk_read(dataset, chunk, start, None, tags, size)
            admitted = runner.admits(asked)
        self._not_admitted += not admitted
        return admitted

    def may_warm(self, length: int) -> bool:
        """Return whether a chunk may be fetched because a part of `length` bytes was missed.

        The answer is False if such fetches are mostly wasted, see `RangeAllowance`.
        """
        return self._allowance is not None and self._allowance.grants(length, _WHOLE_BYTES)

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
        runner = self.runner
        if runner is not None and dataset is not None:
            runner.filled(self._chunk_read(dataset, chunk, 0, length, tags, None), length)

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader of a job will read; without a policy, do nothing.

        Readers publish again and again, within their lease, from any thread. It costs nothing.
        """
        runner = self.runner
        if runner is not None:
            runner.publish(specification)

    def when_policy(self, call: Callable[[], object]) -> None:
        """Call `call` now if there is a policy runner, and whenever a policy is chosen later.

        It must return quickly and never raise; the tier's thread may call it.
        """
        self._on_policy.append(call)
        if self.runner is not None:
            call()

    def observe(self, observer: Observer | None) -> None:
        """Show requests, decisions and published specifications to an observer, or to none."""
        self._observe = observer
        self._choose(self._chosen)

    def _choose(self, choice: PolicyChoice) -> None:
        """Obey a choice of cache policies from now on."""
        self._chosen, runner = choice, self.runner
        if choice.is_plain and self._observe is None:
            self.runner = None
        elif runner is None:
            from chunkstore.ssd.policy_runner import PolicyRunner

            self.runner = PolicyRunner(
                choice, self.admission, names=self._names, observe=self._observe
            )
        else:
            runner.observe = self._observe
            runner.change(choice)
        if self.runner is not None:
            for call in self._on_policy:
                call()

    def _chunk_read(
        self,
        dataset: bytes,
        chunk: bytes,
        start: int,
        length: int | None,
        tags: ReaderTags | None,
        size: int | None,
    ) -> ChunkRead:
        first, most = decided_at_once(start)
        of_part = min(most, _WHOLE_BYTES if size is None else max(1, size - first))
        if tags is None:
            tags = self._default_tags.get(dataset)
            if tags is None:
                name = self._names.get(dataset) or dataset.hex()
                tags = self._default_tags[dataset] = dataset_tags(DatasetRef(name, dataset))
        from chunkstore.ssd.policy_runner import ChunkRead

        return ChunkRead(
            tags, dataset, chunk, start, of_part if length is None else length, of_part
        )

    def insert(self, insert: CacheInsert, patience_s: float = 0.0) -> bool:
        """Queue an insert for the background; return False if the queue has no room in time."""
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
        runner = self.runner
        if kept and runner is not None:
            start = insert.first * segments.segment_bytes
            runner.written(insert.dataset, insert.chunk, start, len(insert.data))
        return kept

    def _has_no_room(self, dataset: bytes) -> bool:
        return self._no_room_until.get(dataset, 0.0) > time.monotonic()

    def forget(self, chunk: bytes) -> bool:
        """Drop the segments of a damaged chunk; return whether there were any."""
        segments = self.segments
        return segments is not None and bool(self.call(lambda: segments.forget(chunk), 0))

    def wait_until_written(self, timeout_s: float) -> bool:
        """Return whether the queue was emptied in time: each insert was written or given up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, timeout_s)

    def call(
        self, access: Callable[[], T], length: int, timeout_s: float | None = None
    ) -> T | None:
        """Return the result of an access to `length` bytes, within `DEADLINE_S` by default.

        Return None if it fails or is late, which takes the tier out of service.
        """
        timeout_s = DEADLINE_S if timeout_s is None else timeout_s
        timeout_s += _DEADLINE_S_PER_BYTE * length
        try:
            return self._threads.run(access, timeout_s)
        except TimeoutError:
            self._out_of_service(f"no answer within {timeout_s:.2f} s")
        except _WRONG as error:
            self._failed(error)
        return None

    def _failed(self, error: Exception) -> None:
        self._index_unsound |= isinstance(error, UNSOUND)
        self._out_of_service(f"{type(error).__name__}: {error}")

    def statistics(self) -> TierStatistics:
        """Return the current statistics."""
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
            None if self.runner is None else policies_statistics(self.runner),
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """Close the tier; queued inserts are dropped."""
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
                log.debug("the SSD tier %s was not closed cleanly: %s", self._folder, error)

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
                self._failed(error)

    def _look(self) -> None:
        """Do what is due: open, probe, tend or record names."""
        segments, now = self._segments, time.monotonic()
        if segments is None:
            self._open_now()
        elif not self._health.is_up:
            if self._health.may_probe():
                self._probe(segments)
        elif now - self._tended_at > TEND_INTERVAL_S:
            self._tended_at = now
            self.call(segments.tend, 0, _OPEN_TIMEOUT_S)
            self._obey_policy_file()
            if self.runner is not None:
                budget_bytes = self.call(lambda: segments.budget_bytes, 0)
                self.runner.budget_bytes = budget_bytes or self.runner.budget_bytes
        runner = self.runner
        if segments is not None and segments.policy is not runner:
            segments.policy = runner
        if runner is not None and (runner.tend() or runner.has_stale_ranks):
            self._rank(runner)
        if segments is not None and self._health.is_up:
            self._note_names()

    def _rank(self, runner: PolicyRunner) -> None:
        segments = self.segments
        if segments is not None:
            self.call(lambda: runner.rank(segments.ranked), 0, _OPEN_TIMEOUT_S)
            if runner.choice.write_budget is not None:
                self.call(lambda: runner.node_wrote(_written_bytes(segments)), 0, _OPEN_TIMEOUT_S)

    def _obey_policy_file(self) -> None:
        """Obey the choice in the folder, or else that of this process."""
        # A list tells the answer None from a call that failed.
        found = self.call(lambda: [self._policy_file.read()], 0)
        choice = self._chosen if found is None else found[0] or self._choice
        if choice != self._chosen:
            self._choose(choice)
            log.info("the SSD tier %s has the cache policy %s", self._folder, choice.policy)

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
            self._out_of_service(f"cannot open it: {error or type(error).__name__}")
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
            self._threads.start(segments.sweep, SimpleQueue())  # no caller waits for its end

    def _probe(self, segments: SegmentStore) -> None:
        """Put the tier back into service if its SSD works."""
        try:
            probe = partial(segments.probe, rebuild=self._index_unsound)
            self._threads.run(probe, _OPEN_TIMEOUT_S)
        except (TimeoutError, ValueError, *_WRONG) as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            return
        log.warning("the SSD tier %s is in service again", self._folder)
        self._index_unsound = False
        self._health.recovered()

    def _out_of_service(self, reason: str) -> None:
        if self._health.failed(reason):
            log.warning("the SSD tier %s is out of service: %s", self._folder, reason)
        with self._changed:
            self._start()
            self._changed.notify_all()


def _written_bytes(segments: SegmentStore) -> int:
    """Return what the acting policies of all processes have written."""
    decided = segments.decisions().items()
    return sum(counts.written_bytes for by, counts in decided if by.role == "acting")

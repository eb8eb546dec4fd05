"""The policy runner: what stands between an SSD tier and its cache policies (0030).

It feeds the acting policy and the shadow policy with the tier's requests and with what jobs
publish, refreshes both every 10 s, and at once when a job tells another order, and counts what they
decide by dataset, bucket and job.

A read waits at most a millisecond for it. While a refresh takes longer, requests are noted and told
to the policies afterwards, and missed chunks are refused.

Readers often read a chunk by many small ranges. All of them are one request of the policy: it ends
when as many bytes were read as the chunk has, and the policy is asked once in it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.admission import Admission
from chunkstore.ssd.eviction import Ranking
from chunkstore.ssd.guarded_policy import GuardedPolicy, MakesPolicies
from chunkstore.ssd.policies.jobs import JobSpecification
from chunkstore.ssd.policies.naming import policy_of
from chunkstore.ssd.policies.policy import REFRESH_S
from chunkstore.ssd.policies.region_rank import SOON, fill_class
from chunkstore.ssd.policies.tags import Bucket, key_of
from chunkstore.ssd.policy_choice import LRU, PolicyChoice
from chunkstore.ssd.policy_counts import CountedRow, CountedRows, DecidedRow, PolicyCounts, total_of
from chunkstore.ssd.policy_explanation import (
    ChunkExplanation,
    LastDecision,
    explanation,
    priority_of,
)
from chunkstore.ssd.reader_tags import ReaderTags, decided_segment
from chunkstore.ssd.region_ranking import NextUses, RegionRanks
from chunkstore.ssd.segment_index import Region
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES, Segment
from chunkstore.ssd.shadow_cache import ShadowCache

WAIT_S: Final = 0.001
"""Seconds that a read waits for the runner."""
_BACKLOG: Final = 1 << 16
_PASSES: Final = 1 << 16
_REMEMBERED: Final = 1 << 15
"""The last decisions that are kept for explanations: 10 MiB at most."""
_JOBS: Final = 1024


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One request as the policies see it: of a chunk's object up to 32 MiB, or a block beyond."""

    job: str
    epoch: int
    dataset: str
    bucket: Bucket
    key: int
    """The key of the first segment (`policies.tags.key_of`)."""
    length: int
    """The bytes about which a policy decides at once."""
    hit: bool


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The answer of the acting policy, or of the tier's own admission, about a missed request."""

    bucket: Bucket
    key: int
    admitted: bool


Observed: TypeAlias = PolicyRequest | PolicyDecision | JobSpecification
"""What a trace recorder sees, in the order in which it happens."""
Observer: TypeAlias = Callable[[Observed], None]
"""A function that takes note quickly, from any thread, and never raises."""


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A read of a chunk's object by one reader."""

    tags: ReaderTags
    dataset: bytes
    chunk: bytes
    start: int
    length: int
    """Bytes that were asked for."""
    size: int
    """Bytes of the object, or of its block, about which the policy decides at once."""


@dataclass(slots=True)
class _Pass:
    """The request of a chunk that a reader reads by parts."""

    left: int
    """Bytes that are still to be read."""
    admitted: bool | None = None


class PolicyRunner:
    """The policies of one tier in one process. Thread-safe. Implements `RegionPolicy`.

    The tier's own thread calls `tend` about once a second. All others are calls of readers.
    """

    def __init__(
        self,
        choice: PolicyChoice,
        admission: Admission,
        *,
        names: Mapping[bytes, str] | None = None,
        observe: Observer | None = None,
        now: Callable[[], float] = time.monotonic,
        policies: MakesPolicies = policy_of,
    ) -> None:
        """`admission` decides where the acting policy is `lru`.

        `names` has the names of datasets by their ids; the caller may add to it later.
        """
        self.choice = choice
        self.observe = observe
        self.budget_bytes = 0
        """The size of the tier, which the shadow policy has too; the tier sets it."""
        self._admission = admission
        self._names = {} if names is None else names
        self._now = now
        self._lock = threading.Lock()
        self._policies = policies
        self._acting = GuardedPolicy(choice, choice.policy, policies)
        self._shadow = self._shadow_of(choice)
        self._backlog: deque[tuple[str, Bucket, int, int]] = deque(maxlen=_BACKLOG)
        """Requests that came while a refresh ran."""
        self._passes: OrderedDict[tuple[str, int], _Pass] = OrderedDict()
        self._last: OrderedDict[int, LastDecision] = OrderedDict()
        """Key -> the decision about its last miss."""
        self._published: dict[tuple[str, str], tuple[JobSpecification, float]] = {}
        """(job, reader) -> its specification, and the time at which its lease ends."""
        self._new: dict[tuple[str, str], JobSpecification] = {}
        """What was published since the last `tend`."""
        self._publishing = threading.Lock()
        self._refreshed_at = float("-inf")
        self._given_written = 0
        """Written bytes of this process that the node knows of."""
        self._others_written: int | None = None
        self._ranks: RegionRanks | None = None
        """The ranks of regions; None: the policy predicts nothing."""
        self.counts = CountedRows()

    @property
    def policy(self) -> str:
        """The name of the acting policy; a simpler one than was chosen if that failed."""
        return self._acting.name

    @property
    def shadow(self) -> ShadowCache | None:
        """The shadow policy with its counts, if there is one."""
        return self._shadow

    # Readers call the methods below.

    def requested(self, read: ChunkRead, *, hit: bool) -> None:
        """Take note of a read, after the tier has answered it, or could not."""
        self.looked_up(read, hit=hit)
        self.asked(read, hit=hit)

    def looked_up(self, read: ChunkRead, *, hit: bool) -> None:
        """Count a read of the SSD, without a request of the policy."""
        row = self._row(read.dataset, read.tags.bucket_of(read.chunk), read.tags.job)
        if hit:
            self.counts.add(row, hit_bytes=read.length)
        else:
            self.counts.add(row, miss_bytes=read.length)

    def asked(self, read: ChunkRead, *, hit: bool) -> None:
        """Take note of a request that the SSD may not even see."""
        bucket, key = read.tags.bucket_of(read.chunk), _key(read.chunk, read.start)
        job = read.tags.job
        if not self._lock.acquire(timeout=WAIT_S):
            self._backlog.append((job, bucket, key, read.size))
            return
        try:
            begins = self._begins(job, key, read)
            if begins:
                self._acting.ask(lambda policy: policy.requested(job, bucket, key, read.size))
            if self._shadow is not None:
                row = self._row(read.dataset, bucket, job)
                self._shadow.asked(row, key, read.length, read.size, begins=begins)
        finally:
            self._lock.release()
        if begins and self.observe is not None:
            name = self._name(read.dataset)
            self.observe(PolicyRequest(job, read.tags.epoch, name, bucket, key, read.size, hit))

    def admits(self, read: ChunkRead) -> bool:
        """Return whether to cache what a read has missed; called after `requested`.

        While uses are predicted, a chunk that is read by parts is cached: the other parts follow at
        once, and each of them would cost the slow store a seek.
        """
        bucket, key = read.tags.bucket_of(read.chunk), _key(read.chunk, read.start)
        if not self._lock.acquire(timeout=WAIT_S):
            return False
        try:
            current = self._passes.get((read.tags.job, key))
            if current is not None and current.admitted is not None:
                return current.admitted
            answer = self._acting.ask(lambda policy: policy.admits(bucket, key, read.size))
            if answer is False and current is not None and self._ranks is not None:
                answer = True  # its other parts are read next, sooner than any predicted use
            if answer is not None and current is not None:
                current.admitted = answer
            admitted = (
                self._admission.admits(read.dataset, read.chunk) if answer is None else answer
            )
            self._remember(key, bucket, admitted)
        finally:
            self._lock.release()
        row = self._row(read.dataset, bucket, read.tags.job)
        if admitted:
            self.counts.add(row, admitted_bytes=read.size)
        else:
            self.counts.add(row, refused_bytes=read.size)
        if self.observe is not None:
            self.observe(PolicyDecision(bucket, key, admitted))
        return admitted

    def filled(self, read: ChunkRead, length: int) -> None:
        """Count bytes that were read from the store for the SSD alone."""
        bucket = read.tags.bucket_of(read.chunk)
        self.counts.add(self._row(read.dataset, bucket, read.tags.job), filled_bytes=length)

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader of a job will read; the policies learn of it at `tend`.

        It may be called as often as the reader publishes, from any thread, and costs nothing.
        """
        reader = specification.job, specification.reader
        with self._publishing:
            if reader in self._new or len(self._new) < _JOBS:
                self._new[reader] = specification
        if self.observe is not None:
            self.observe(specification)

    def explain(
        self, dataset: bytes, chunk: bytes, start: int = 0, tags: ReaderTags | None = None
    ) -> ChunkExplanation:
        """Return what the acting policy knows of the chunk with byte `start` of its object.

        Without the reader's tags the bucket is that of the last miss, or else the dataset.
        """
        key = _key(chunk, start)
        with self._lock:
            bucket = self._bucket_of(dataset, key) if tags is None else tags.bucket_of(chunk)
            last, policy = self._last.get(key), self._acting.policy
        uses, ranks = self._next_uses([key]), self._ranks
        return explanation(
            policy,
            self.policy,
            bucket,
            last,
            self._now(),
            None if uses is None else float(uses[0]),
            None if ranks is None else ranks.evicts_next,
        )

    # The tier's background thread, and the process's writers, call the methods below.

    def written(self, dataset: bytes, chunk: bytes, start: int, length: int) -> None:
        """Take note of bytes that the SSD was given to write."""
        with self._lock:
            self._acting.ask(lambda policy: policy.written(length))
            bucket = self._bucket_of(dataset, _key(chunk, start))
        self.counts.add(self._row(dataset, bucket, ""), written_bytes=length)

    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments of an evicted region that are written again."""
        kept: list[Segment] = []
        for key, part in _decided(segments).items():
            length = len(part) * DEFAULT_SEGMENT_BYTES
            with self._lock:
                bucket = self._bucket_of(dataset, key)
                stays = self._acting.ask(
                    lambda policy, bucket=bucket, key=key, length=length: policy.reinserts(  # type: ignore[misc]
                        bucket, key, length
                    )
                )
            row = self._row(dataset, bucket, "")
            if stays:
                kept += part
                self.counts.add(row, reinserted_bytes=length, written_bytes=length)
                with self._lock:
                    self._acting.ask(lambda policy, length=length: policy.written(length))  # type: ignore[misc]
            else:
                self.counts.add(row, evicted_bytes=length)
        return kept

    def ranking(self, otherwise: Ranking) -> Ranking:
        """See `RegionPolicy`."""
        ranks = self._ranks
        return otherwise if ranks is None else ranks.ranking(otherwise)

    def taken(self, region: Region, *, has_free: bool) -> None:
        """See `RegionPolicy`."""
        ranks = self._ranks
        if ranks is not None:
            ranks.taken(region, has_free=has_free)
            self._tell(ranks)

    def fill_class(self, chunk: bytes, start: int) -> int:
        """See `RegionPolicy`."""
        ranks = self._ranks
        uses = None if ranks is None else self._next_uses([_key(chunk, start)])
        if ranks is None or uses is None:
            return SOON
        return fill_class(float(uses[0]), self._now(), ranks.evicts_next, ranks.regions)

    def take_counts(self) -> Mapping[DecidedRow, PolicyCounts]:
        """See `RegionPolicy`."""
        acting = self.counts.take()
        self._given_written += total_of(acting).written_bytes
        found = {DecidedRow("acting", self.policy, row): of for row, of in acting.items()}
        shadow = self._shadow
        if shadow is not None:
            name = shadow.policy.name
            taken = shadow.counts.take()
            found |= {DecidedRow("shadow", name, row): of for row, of in taken.items()}
        return found

    def node_wrote(self, written_bytes: int) -> None:
        """Take the bytes that other processes have written from the write budget.

        `written_bytes` are those of all processes of the node since the index was created.
        """
        others = written_bytes - self._given_written
        former, self._others_written = self._others_written, others
        if former is not None and others > former:
            with self._lock:
                self._acting.ask(lambda policy: policy.written(others - former))

    def rank(self, ranked: Callable[[NextUses, float], RegionRanks | None]) -> None:
        """Compute the ranks of regions again, by `SegmentStore.ranked`."""
        self._ranks = ranked(self._next_uses, self._now())
        if self._ranks is not None:
            self._tell(self._ranks)

    @property
    def has_stale_ranks(self) -> bool:
        """True if the ranks should be computed before the next refresh."""
        return self._ranks is not None and self._ranks.is_stale

    def _next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64] | None:
        with self._lock:
            return self._acting.ask(lambda policy: _checked(policy.next_uses(keys), len(keys)))

    def _tell(self, ranks: RegionRanks) -> None:
        with self._lock:
            self._acting.ask(lambda policy: policy.evicts_next(ranks.evicts_next))

    def change(self, choice: PolicyChoice) -> None:
        """Go on with other policies. The request history and the published jobs stay."""
        with self._lock:
            if choice != self.choice:
                self._acting.change(choice, choice.policy)
                self._refreshed_at, self._ranks = float("-inf"), None
                if choice.shadow != self.choice.shadow or self._shadow is None:
                    self._shadow = self._shadow_of(choice)
                else:
                    self._shadow.policy.change(choice, choice.shadow or LRU)
            self.choice = choice
        with self._publishing:
            known = {reader: found for reader, (found, _) in self._published.items()}
            self._new = {**known, **self._new}

    def _shadow_of(self, choice: PolicyChoice) -> ShadowCache | None:
        if choice.shadow is None:
            return None
        return ShadowCache(GuardedPolicy(choice, choice.shadow, self._policies))

    def tend(self) -> bool:
        """Tell the policies what was published, and refresh them if that is due.

        It is due every 10 s, and when a reader has begun, has ended, or tells another order.
        Return whether they were refreshed.
        """
        now = self._now()
        with self._publishing:
            new, self._new = self._new, {}
        if any(self._is_news(reader, found) for reader, found in new.items()):
            self._refreshed_at = float("-inf")
        for specification in new.values():  # a lock for each: a read may come in between
            with self._lock:
                self._acting.publish([specification], now)
                if self._shadow is not None:
                    self._shadow.publish(specification, now)
        self._published.update(
            {reader: (found, now + found.lease_s) for reader, found in new.items()}
        )
        if abs(now - self._refreshed_at) < REFRESH_S:
            return False
        self._published = {of: found for of, found in self._published.items() if now < found[1]}
        with self._lock:
            self._refreshed_at = now
            while self._backlog:
                request = self._backlog.popleft()
                self._acting.ask(lambda policy, request=request: policy.requested(*request))  # type: ignore[misc]
            self._acting.ask(lambda policy: policy.refresh(now))
            if self._shadow is not None:
                self._shadow.resize(self.budget_bytes)
                self._shadow.refresh(now)
        return True

    def _is_news(self, reader: tuple[str, str], found: JobSpecification) -> bool:
        """Return whether the reader has begun or ended, or reads in another order than before."""
        known, _ = self._published.get(reader, (None, 0.0))
        if known is None:
            return True
        plans = [None if each.plan is None else each.plan.id for each in (known, found)]
        return plans[0] != plans[1] or known.buckets != found.buckets

    # The caller of the methods below holds the lock.

    def _begins(self, job: str, key: int, read: ChunkRead) -> bool:
        """Return whether the read begins a request, as the policies see it."""
        reader = job, key
        if read.length >= read.size:
            self._passes.pop(reader, None)
            return True
        current = self._passes.get(reader)
        if current is not None:
            current.left -= read.length
            if current.left <= 0:
                del self._passes[reader]
            return False
        self._passes[reader] = _Pass(read.size - read.length)
        if len(self._passes) > _PASSES:
            self._passes.popitem(last=False)
        return True

    def _remember(self, key: int, bucket: Bucket, admitted: bool) -> None:
        priority, threshold = priority_of(self._acting.policy, bucket)
        self._last[key] = LastDecision(
            self.policy, bucket, admitted, self._now(), priority, threshold
        )
        self._last.move_to_end(key)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def _bucket_of(self, dataset: bytes, key: int) -> Bucket:
        known = self._last.get(key)
        return Bucket(self._name(dataset)) if known is None else known.bucket

    def _row(self, dataset: bytes, bucket: Bucket, job: str) -> CountedRow:
        return CountedRow(self._name(dataset), bucket, job)

    def _name(self, dataset: bytes) -> str:
        return self._names.get(dataset) or dataset.hex()


def _key(chunk: bytes, start: int) -> int:
    return key_of(decided_segment(chunk, start))


def _checked(uses: npt.NDArray[np.float64] | None, count: int) -> npt.NDArray[np.float64] | None:
    """Return a policy's predictions if they can be used; raise ValueError if not."""
    if uses is not None and (uses.shape != (count,) or np.isnan(uses).any()):
        raise ValueError("the policy predicts no time for some chunks")
    return uses


def _decided(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    """Return the segments by the keys of the parts of objects to which they belong."""
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        start = segment.number * DEFAULT_SEGMENT_BYTES
        found.setdefault(_key(segment.chunk, start), []).append(segment)
    return found

"""The policy runner: what stands between an SSD tier and its cache policies (0030).

It feeds the acting policy and the shadow policy with the tier's requests and with what jobs
publish, refreshes both every 10 s, and at once when a job tells another order, and counts what they
decide by dataset, bucket and job.

A read waits at most a millisecond for it. While a refresh takes longer, requests are noted and told
to the policies afterwards, and missed chunks are refused. Beside what the policy takes, a read of a
whole chunk costs 2 µs and a miss 5 µs; a part of a chunk costs 1 µs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.admission import Admission
from chunkstore.ssd.eviction import Ranking
from chunkstore.ssd.guarded_policy import GuardedPolicy, MakesPolicies
from chunkstore.ssd.ongoing_requests import OngoingRequest, OngoingRequests
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.naming import policy_of
from chunkstore.ssd.policies.policy import REFRESH_S
from chunkstore.ssd.policies.region_rank import SOON, fill_class
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import LRU, PolicyChoice
from chunkstore.ssd.policy_counts import CountedRow, CountedRows, DecidedRow, PolicyCounts, total_of
from chunkstore.ssd.policy_events import Observer, PolicyDecision, PolicyRequest
from chunkstore.ssd.policy_explanation import (
    ChunkExplanation,
    LastDecision,
    LastDecisions,
    explanation,
    priority_of,
)
from chunkstore.ssd.publications import Publications
from chunkstore.ssd.reader_tags import ChunkRead, ReaderTags, decided_key
from chunkstore.ssd.region_ranking import NextUses, RegionRanks
from chunkstore.ssd.segment_index import Region
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES, Segment
from chunkstore.ssd.shadow_cache import ShadowCache

WAIT_S: Final = 0.001
"""Seconds that a read waits for the runner."""
_BACKLOG: Final = 1 << 16


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
        self._backlog: deque[tuple[ChunkRead, OngoingRequest, bool]] = deque(maxlen=_BACKLOG)
        """Reads that came while a refresh ran, and whether they began their requests."""
        self._ongoing = OngoingRequests()
        self._last = LastDecisions()
        self._publications = Publications()
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
        _count(self._told(read, hit), read, hit)

    def looked_up(self, read: ChunkRead, *, hit: bool) -> None:
        """Count a read of the SSD, without a request of the policy."""
        _count(self._ongoing.of(read) or self._request(read), read, hit)

    def asked(self, read: ChunkRead, *, hit: bool) -> None:
        """Take note of a request that the SSD may not even see."""
        self._told(read, hit)

    def _told(self, read: ChunkRead, hit: bool) -> OngoingRequest:
        """Tell the policies of a read, and return the request that it begins or goes on with."""
        request = self._ongoing.goes_on(read)
        begins = False
        if request is None:
            request = self._request(read)
            begins = self._ongoing.begin(read, request)
        if (begins and self._acting.policy is not None) or self._shadow is not None:
            self._tell_policies(read, request, begins)
        if begins and self.observe is not None:
            job, epoch, name = read.tags.job, read.tags.epoch, self._name(read.dataset)
            self.observe(
                PolicyRequest(job, epoch, name, request.bucket, request.key, read.size, hit)
            )
        return request

    def _tell_policies(self, read: ChunkRead, request: OngoingRequest, begins: bool) -> None:
        if not self._acquired():
            self._backlog.append((read, request, begins))
            return
        try:
            self._deliver(read, request, begins)
        finally:
            self._lock.release()

    def admits(self, read: ChunkRead) -> bool:
        """Return whether to cache what a read has missed; called after `requested`.

        While uses are predicted, a chunk that is read by parts is cached: the other parts follow at
        once, and each of them would cost the slow store a seek.
        """
        current = self._ongoing.of(read)
        if current is not None and current.admitted is not None:
            return current.admitted
        request = current or self._request(read)
        bucket, key = request.bucket, request.key
        if not self._acquired():
            return False
        try:
            answer = self._acting.admits(bucket, key, read.size)
            if answer is False and current is not None and self._ranks is not None:
                answer = True  # its other parts are read next, sooner than any predicted use
            request.admitted = answer
            if answer is None:
                answer = self._admission.admits(read.dataset, read.chunk)
            self._remember(key, bucket, answer)
        finally:
            self._lock.release()
        if answer:
            request.counts.admitted_bytes += read.size
        else:
            request.counts.refused_bytes += read.size
        if self.observe is not None:
            self.observe(PolicyDecision(bucket, key, answer))
        return answer

    def filled(self, read: ChunkRead, length: int) -> None:
        """Count bytes that were read from the store for the SSD alone."""
        bucket = read.tags.bucket_of(read.chunk)
        self._counts(read.dataset, bucket, read.tags.job).filled_bytes += length

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader of a job will read; the policies learn of it at `tend`.

        It may be called as often as the reader publishes, from any thread, and costs nothing.
        """
        self._publications.publish(specification)
        if self.observe is not None:
            self.observe(specification)

    def explain(
        self, dataset: bytes, chunk: bytes, start: int = 0, tags: ReaderTags | None = None
    ) -> ChunkExplanation:
        """Return what the acting policy knows of the chunk with byte `start` of its object.

        Without the reader's tags the bucket is that of the last miss, or else the dataset.
        """
        key = decided_key(chunk, start)
        with self._lock:
            bucket = self._bucket_of(dataset, key) if tags is None else tags.bucket_of(chunk)
            last, policy = self._last.of(key), self._acting.explained
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
            bucket = self._bucket_of(dataset, decided_key(chunk, start))
        self._counts(dataset, bucket).written_bytes += length

    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments of an evicted region that are written again."""
        kept: list[Segment] = []
        for key, part in _decided(segments).items():
            if self._stays(dataset, key, len(part) * DEFAULT_SEGMENT_BYTES):
                kept += part
        return kept

    def _stays(self, dataset: bytes, key: int, length: int) -> bool:
        with self._lock:
            bucket = self._bucket_of(dataset, key)
            stays = self._acting.ask(lambda policy: policy.reinserts(bucket, key, length))
            if stays:
                self._acting.ask(lambda policy: policy.written(length))
        counts = self._counts(dataset, bucket)
        if stays:
            counts.reinserted_bytes += length
            counts.written_bytes += length
        else:
            counts.evicted_bytes += length
        return bool(stays)

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
        uses = None if ranks is None else self._next_uses([decided_key(chunk, start)])
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
        self._publications.again()

    def _shadow_of(self, choice: PolicyChoice) -> ShadowCache | None:
        if choice.shadow is None:
            return None
        return ShadowCache(GuardedPolicy(choice, choice.shadow, self._policies))

    def tend(self) -> bool:
        """Tell the policies what they have missed and what was published; refresh them if due.

        A refresh is due every 10 s, and when a reader has begun, has ended, or tells another order.
        Return whether they were refreshed.
        """
        now = self._now()
        new, is_news = self._publications.take(now)
        if is_news:
            self._refreshed_at = float("-inf")
        for specification in new:  # a lock for each: a read may come in between
            with self._lock:
                self._acting.publish([specification], now)
                if self._shadow is not None:
                    self._shadow.publish(specification, now)
        if self._backlog:
            with self._lock:
                for _ in range(len(self._backlog)):
                    self._deliver(*self._backlog.popleft())
        if abs(now - self._refreshed_at) < REFRESH_S:
            return False
        self._publications.expire(now)
        with self._lock:
            self._refreshed_at = now
            self._acting.ask(lambda policy: policy.refresh(now))
            if self._shadow is not None:
                self._shadow.resize(self.budget_bytes)
                self._shadow.refresh(now)
        return True

    # The caller of the methods below holds the lock.

    def _deliver(self, read: ChunkRead, request: OngoingRequest, begins: bool) -> None:
        """Tell the policies of a read; `begins`: it begins its request."""
        job, bucket, key = read.tags.job, request.bucket, request.key
        if begins:
            self._acting.requested(job, bucket, key, read.size)
        if self._shadow is not None:
            row = CountedRow(self._name(read.dataset), bucket, job)
            self._shadow.asked(row, key, read.length, read.size, begins=begins)

    def _remember(self, key: int, bucket: Bucket, admitted: bool) -> None:
        priority, threshold = priority_of(self._acting.explained, bucket)
        self._last.add(
            key, LastDecision(self.policy, bucket, admitted, self._now(), priority, threshold)
        )

    def _bucket_of(self, dataset: bytes, key: int) -> Bucket:
        known = self._last.of(key)
        return Bucket(self._name(dataset)) if known is None else known.bucket

    # No lock is needed for the methods below.

    def _acquired(self) -> bool:
        """Return whether a read has the lock, which the caller releases, within `WAIT_S`."""
        return self._lock.acquire(blocking=False) or self._lock.acquire(timeout=WAIT_S)

    def _request(self, read: ChunkRead) -> OngoingRequest:
        tags, chunk = read.tags, read.chunk
        bucket = tags.bucket_of(chunk)
        counts = self._counts(read.dataset, bucket, tags.job)
        return OngoingRequest(bucket, decided_key(chunk, read.start), counts)

    def _counts(self, dataset: bytes, bucket: Bucket, job: str = "") -> PolicyCounts:
        return self.counts.of(self._name(dataset), bucket, job)

    def _name(self, dataset: bytes) -> str:
        return self._names.get(dataset) or dataset.hex()


def _count(request: OngoingRequest, read: ChunkRead, hit: bool) -> None:
    """Count the bytes that a reader has asked for."""
    if hit:
        request.counts.hit_bytes += read.length
    else:
        request.counts.miss_bytes += read.length


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
        found.setdefault(decided_key(segment.chunk, start), []).append(segment)
    return found

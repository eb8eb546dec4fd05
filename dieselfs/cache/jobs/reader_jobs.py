"""The job of one mount: the tags of its requests, what it publishes, and what it learns of others.

Nothing happens until a cache policy needs it: that of the mount's SSD tier, which may be chosen at
any time, or perhaps those of cache nodes, if the job has a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import dataset_tags
from dieselfs.cache.jobs.beats import CLOSE_S, Beat
from dieselfs.cache.jobs.chunk_buckets import BUCKET_MAP_NAMES, BucketMapName, ChunkBuckets
from dieselfs.cache.jobs.job_beats import BEAT_S, JobBeats
from dieselfs.cache.jobs.job_publisher import JobPublisher, ReaderIdentity
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.job_watcher import JobWatcher
from dieselfs.cache.jobs.reading import Reading, ReadingView
from dieselfs.cache.jobs.registries import job_registry
from dieselfs.prefetch.window import FollowedOrder
from metadata.snapshot import Snapshot


class HasPolicies(Protocol):
    """The policies of an SSD tier, or what records as they would: see `TierPolicies`."""

    @property
    def runner(self) -> PolicyRunner | None:
        """The policy runner; None while none is needed."""
        ...

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader of a job will read."""
        ...

    def when_policy(self, call: Callable[[], object]) -> None:
        """Call `call` as soon as there is a policy runner."""
        ...


class ReaderJobs:
    """Publishes for the readers of one snapshot, and tells the tier what others publish."""

    def __init__(
        self,
        job: str,
        snapshot: Snapshot,
        index_url: str,
        *,
        policies: HasPolicies | None,
        buckets: str = "dataset",
        has_cluster: bool = False,
        beat_s: float = BEAT_S,
    ) -> None:
        """Create it; costs nothing. `job` is empty for readers without a name."""
        self._identity, self._snapshot = ReaderIdentity(job), snapshot
        self._policies: HasPolicies | None = None
        self._is_told = has_cluster and bool(job)
        self.tags = dataset_tags(snapshot.dataset, job)
        """The tags of the mount's requests: they change with the epoch and the bucket map."""
        self._map: BucketMapName = "dataset"
        self._buckets = ChunkBuckets(snapshot)
        self._use(buckets)
        self._view: ReadingView | None = None
        self._make_view: Callable[[], ReadingView] | None = None
        self._parts: list[Beat[JobRegistry]] = [JobPublisher(self._identity, self._look)]
        self._beats = JobBeats(partial(job_registry, index_url), self._parts, beat_s)
        if policies is not None:
            self.tell(policies)

    def tell(self, policies: HasPolicies) -> None:
        """Tell a tier, or a store that records, what others publish; call it before `begin`."""
        self._policies = policies
        self._parts.append(JobWatcher(policies.publish, lambda: policies.runner is not None))

    def begin(self, followed: Callable[[], FollowedOrder | None], reads: Callable[[], int]) -> None:
        """Publish and watch from now on, or as soon as there is a policy.

        `followed` and `reads` are those of `ReadingView`.
        """

        def view() -> ReadingView:
            return ReadingView(
                followed,
                lambda _: self._buckets,
                snapshot=self._snapshot,
                reads=reads,
                clock=time.monotonic,
            )

        self._make_view = view
        if self._is_told:
            self._beats.start()
        if self._policies is not None:
            self._policies.when_policy(self._beats.start)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Withdraw what was published, within this time."""
        self._beats.close(timeout_s)

    # The thread of the beats calls the methods below.

    def _look(self) -> Reading | None:
        """Return what is read now; None if nothing is, or no policy needs to know.

        No policy needs to know of reads that no cache keeps.
        """
        if not self.tags.may_keep:
            return None
        runner = None if self._policies is None else self._policies.runner
        if runner is None and not self._is_told:
            return None
        if runner is not None:
            self.tags.job = self._identity.name  # by which the policy knows the record
            self._use(runner.choice.buckets)
        if self._view is None:
            assert self._make_view is not None
            self._view = self._make_view()
        reading = self._view.look()
        if reading is not None:
            self.tags.epoch = reading.epoch
        return reading

    def _use(self, map_name: str) -> None:
        """Put chunks into buckets by this map from now on."""
        for known in BUCKET_MAP_NAMES:
            if known == map_name != self._map:
                self._map, self._view = known, None
                self._buckets = ChunkBuckets(self._snapshot, known)
                plain = dataset_tags(self._snapshot.dataset).bucket_of
                self.tags.bucket_of = plain if known == "dataset" else self._buckets.of

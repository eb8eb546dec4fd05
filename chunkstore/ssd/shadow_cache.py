"""What an SSD tier would cache under its shadow policy: chunks by their keys, without data.

It evicts single chunks, by their predicted next uses where the policy predicts them, else the least
recently used one. On a large tier it follows one chunk in `scale`, and counts each as that many, so
that it takes 16 MiB of memory at most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from chunkstore.ssd.guarded_policy import GuardedPolicy
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_counts import CountedRow, CountedRows

MAX_CHUNKS: Final = 1 << 16
_CHUNK_BYTES: Final = 4 << 20


class _Cached(NamedTuple):
    length: int
    row: CountedRow


class ShadowCache:
    """The shadow policy of one tier, and the cache that it would fill. Not thread-safe.

    As many processes as share a tier, each has a shadow of the tier's size and knows of its own
    requests alone.
    """

    def __init__(self, policy: GuardedPolicy) -> None:
        self.policy = policy
        self.counts = CountedRows()
        self._budget_bytes = 0
        self._scale = 1
        self._used_bytes = 0
        self._cached: OrderedDict[int, _Cached] = OrderedDict()
        """Key -> what is cached, the least recently used first."""
        self._coming: list[tuple[float, int]] = []
        """Next use and key of chunks, the last one to be evicted first; some may be gone."""

    def resize(self, budget_bytes: int) -> None:
        """Set the size of the tier."""
        if budget_bytes != self._budget_bytes:
            self._budget_bytes = budget_bytes
            self._scale = max(1, -(-budget_bytes // (MAX_CHUNKS * _CHUNK_BYTES)))
            self._cached.clear()
            self._used_bytes = 0

    def asked(self, row: CountedRow, key: int, length: int, size: int, *, begins: bool) -> None:
        """Take note of a read of `length` bytes of a chunk of `size` bytes.

        `begins`: the read begins a request, as the policies see it.
        """
        bucket = Bucket(row.bucket)
        if begins:
            self.policy.requested(row.job, bucket, key, size)
        if key % self._scale:
            return
        counted = length * self._scale
        if key in self._cached:
            self._cached.move_to_end(key)
            self.counts.of(*row).hit_bytes += counted
            return
        self.counts.of(*row).miss_bytes += counted
        if begins:
            self._missed(row, key, size, is_part=length < size)

    def _missed(self, row: CountedRow, key: int, size: int, *, is_part: bool) -> None:
        bucket, counted = Bucket(row.bucket), size * self._scale
        admitted = self.policy.admits(bucket, key, counted)
        if admitted is False or size * self._scale > self._budget_bytes:
            self.counts.of(*row).refused_bytes += counted
            return
        self.policy.ask(lambda policy: policy.written(counted))
        # A reader that misses a part gets it from the store, which then sends the whole chunk too.
        counts = self.counts.of(*row)
        counts.admitted_bytes += counted
        counts.written_bytes += counted
        counts.filled_bytes += counted if is_part else 0
        self._cached[key] = _Cached(size, row._replace(job=""))
        self._used_bytes += size
        if self._used_bytes * self._scale > self._budget_bytes:
            while self._used_bytes * self._scale > self._budget_bytes:
                self._evict()
            self._tell()

    def _evict(self) -> None:
        while self._coming:
            _, key = self._coming.pop()
            found = self._cached.pop(key, None)
            if found is not None:
                break
        else:
            _, found = self._cached.popitem(last=False)
        self._used_bytes -= found.length
        self.counts.of(*found.row).evicted_bytes += found.length * self._scale

    def publish(self, specification: JobSpecification, now: float) -> None:
        """Tell the policy what a job has published."""
        self.policy.publish([specification], now)

    def refresh(self, now: float) -> None:
        """Refresh the policy, and the order of eviction."""
        self.policy.ask(lambda policy: policy.refresh(now))
        keys = list(self._cached)
        uses = self.policy.ask(lambda policy: policy.next_uses(keys))
        self._coming = [] if uses is None else sorted(zip(uses.tolist(), keys, strict=True))
        self._tell()

    def _tell(self) -> None:
        """Tell the policy what an admission costs, if it predicts uses."""
        while self._coming and self._coming[-1][1] not in self._cached:
            self._coming.pop()
        if self._coming:
            is_full = (self._used_bytes + _CHUNK_BYTES) * self._scale > self._budget_bytes
            cost = self._coming[-1][0] if is_full else None
            self.policy.ask(lambda policy: policy.evicts_next(cost))

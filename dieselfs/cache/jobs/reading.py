"""The present reading of a process, as in its job record: an order, laid out, and a position.

A prefetcher's position is that of its readers in files. Published are the keys of segments, in the
order of their chunks' first use, and how many of them need no request any more: they were read, or
were prefetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.segment_buckets import key_of
from chunkstore.ssd.reader_tags import WHOLE_BYTES, decided_segments
from chunkstore.ssd.segments import Segment
from dieselfs.cache.jobs.chunk_buckets import ChunkBuckets
from dieselfs.cache.jobs.published_order import PublishedOrder
from dieselfs.prefetch.plans import ListedPlan
from dieselfs.prefetch.window import FollowedOrder, PlannedOrder
from metadata.snapshot import Snapshot

READ_LATELY_S: Final = 60.0
"""The time for which readers without a known order count after their last read."""
RATED_S: Final = 4.0
"""The time over which a rate is measured at least."""
_LOW_BITS: Final = 0xFFFFFFFF
_NO_KEYS: Final = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Reading:
    """The present reading of one process, of all its readers."""

    snapshot: Snapshot
    order: PublishedOrder
    epoch: int = 0
    position: int = 0
    """The keys of the order that need no request any more."""
    keys_per_s: float = 0.0
    finished: int = 0
    """The buckets of the order, from its first one on, that are read."""


class LaidOutOrder:
    """A planned order as it is published, with the columns that give the position."""

    def __init__(self, order: PlannedOrder, buckets: ChunkBuckets) -> None:
        """Compute it, 0.4 µs a chunk."""
        uses, snapshot = order.uses, order.readers[0].plan.snapshot
        keys, self._keys_before = keys_of_chunks(snapshot, uses.chunks)
        names, self._finished_at = buckets.by_last_use(order)
        self.published = PublishedOrder.of(names, keys)
        self._first = uses.first
        self._keys_a_byte = len(keys) / max(1, int(uses.payload_bytes.sum()))

    def keys_read(self, followed: FollowedOrder) -> int:
        """Return the keys of the chunks that the slowest reader has begun to read."""
        return int(self._keys_before[np.searchsorted(self._first, followed.position, "left")])

    def reading(self, followed: FollowedOrder, epoch: int) -> Reading:
        """Return the reading at this position."""
        begun = int(np.searchsorted(self._first, followed.position, "left"))
        position = int(self._keys_before[max(begun, followed.requested)])
        return Reading(
            followed.order.readers[0].plan.snapshot,
            self.published,
            epoch,
            min(position, len(self.published.keys)),
            followed.bytes_per_s * self._keys_a_byte,
            int(np.searchsorted(self._finished_at, followed.position, "left")),
        )


class ReadingView:
    """The view of what one process reads, from its prefetcher and its counter of reads.

    One thread uses it.
    """

    def __init__(
        self,
        followed: Callable[[], FollowedOrder | None],
        buckets_of: Callable[[Snapshot], ChunkBuckets],
        *,
        snapshot: Snapshot | None = None,
        reads: Callable[[], int] = lambda: 0,
        clock: Callable[[], float],
    ) -> None:
        """Create it.

        `reads` counts reads of `snapshot`: while they become more, and for a minute afterwards, the
        dataset is being read even if no order is known.
        """
        self._followed, self._buckets_of = followed, buckets_of
        self._snapshot, self._reads, self._clock = snapshot, reads, clock
        self._laid_out: tuple[PlannedOrder, LaidOutOrder] | None = None
        self._unplanned: PublishedOrder | None = None
        self._rated: tuple[LaidOutOrder, float, int] | None = None
        """The order whose rate is measured, since when, and the keys read before."""
        self._keys_per_s = 0.0
        self._plan_id, self._plans = "", 0
        self._seen_reads, self._read_at = 0, -READ_LATELY_S

    def look(self) -> Reading | None:
        """Return what is read now; None if nothing is."""
        followed = self._followed()
        if followed is not None and len(followed.order.uses):
            laid = self._laid(followed.order)
            reading = laid.reading(followed, self._epoch(followed.order))
            return replace(reading, keys_per_s=self._rate(laid, followed) or reading.keys_per_s)
        return self._without_order()

    def _laid(self, order: PlannedOrder) -> LaidOutOrder:
        if self._laid_out is None or self._laid_out[0] is not order:
            buckets = self._buckets_of(order.readers[0].plan.snapshot)
            self._laid_out = order, LaidOutOrder(order, buckets)
        return self._laid_out[1]

    def _rate(self, laid: LaidOutOrder, followed: FollowedOrder) -> float:
        """Return the keys that were read in a second of this order, or of the one before; 0: none.

        The prefetcher's rate leaves out the time in which readers wait for a store.
        """
        now, keys = self._clock(), laid.keys_read(followed)
        if self._rated is None or self._rated[0] is not laid:
            self._rated = laid, now, keys
        _, since, before = self._rated
        if now - since >= RATED_S and keys > before:
            self._keys_per_s = (keys - before) / (now - since)
        return self._keys_per_s

    def _epoch(self, order: PlannedOrder) -> int:
        """Return the epoch that a list names, or how many plans there were before."""
        plan = order.readers[0].plan
        if plan.id != self._plan_id:
            self._plan_id, self._plans = plan.id, self._plans + 1
        return plan.listed.parameters.epoch if isinstance(plan, ListedPlan) else self._plans - 1

    def _without_order(self) -> Reading | None:
        now, reads = self._clock(), self._reads()
        if reads != self._seen_reads:
            self._seen_reads, self._read_at = reads, now
        if self._snapshot is None or now - self._read_at >= READ_LATELY_S:
            return None
        if self._unplanned is None:
            names = self._buckets_of(self._snapshot).all()
            self._unplanned = PublishedOrder.of(names, _NO_KEYS)
        return Reading(self._snapshot, self._unplanned, max(0, self._plans - 1))


def keys_of_chunks(
    snapshot: Snapshot, numbers: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the keys of the chunks' segments, and how many keys are before each chunk.

    The second column has one item more than there are chunks.
    """
    columns = snapshot.columns
    ids = columns.chunk_id[numbers].tobytes()
    sizes = columns.chunk_head_bytes[numbers].astype(np.int64)
    sizes += columns.chunk_payload_bytes[numbers].astype(np.int64)
    counts = np.ones(len(numbers), np.int64)
    large = {
        at: [
            key_of(segment) & _LOW_BITS
            for segment in decided_segments(ids[16 * at : 16 * at + 16], int(sizes[at]))
        ]
        for at in np.flatnonzero(sizes > WHOLE_BYTES).tolist()
    }
    for at, keys in large.items():
        counts[at] = len(keys)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    found = np.empty(int(before[-1]), np.uint32)
    starts = before[:-1]
    found[starts] = [
        key_of(Segment(ids[at : at + 16], 0)) & _LOW_BITS for at in range(0, len(ids), 16)
    ]
    for at, keys in large.items():
        found[before[at] : before[at + 1]] = keys
    return found, before

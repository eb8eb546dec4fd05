"""The progress of a job: how far its readers in this process are in the order that is followed.

Warm reads make no request, so what they read shows only in the position in a known order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dieselfs.allocation.readers.observed import JobProgress
from dieselfs.prefetch.window import FollowedOrder, PlannedOrder
from metadata.snapshot import Snapshot


def stored_bytes(snapshot: Snapshot) -> int:
    """Return the bytes that a snapshot's chunks have in the store. Takes a microsecond a chunk."""
    columns = snapshot.columns
    heads, payloads = columns.chunk_head_bytes, columns.chunk_payload_bytes
    return int(heads.sum(dtype=np.int64) + payloads.sum(dtype=np.int64))


class JobProgressMeter:
    """The progress of a process's readers; without an order, what was read by requests alone."""

    def __init__(
        self,
        followed: Callable[[], FollowedOrder | None],
        requested_bytes: Callable[[], int],
        waited_s: Callable[[], float],
    ) -> None:
        self._followed, self._requested_bytes = followed, requested_bytes
        self._waited_s = waited_s
        self._order: PlannedOrder | None = None
        self._epoch = -1
        self._read_before = self._read = 0
        """The bytes of former orders, and of this one, that were read."""

    def __call__(self) -> JobProgress:
        """Return the progress now. One thread calls it."""
        followed = self._followed()
        if followed is not None and len(followed.order.uses):
            if followed.order is not self._order:
                self._begin(followed.order)
            self._read = int(followed.order.uses.read_bytes[followed.position])
        if self._order is None:
            return JobProgress(None, self._requested_bytes(), self._waited_s())
        return JobProgress(self._epoch, self._read_before + self._read, self._waited_s())

    def _begin(self, order: PlannedOrder) -> None:
        """Count the former order as read, if its readers were in its second half."""
        former = 0 if self._order is None else int(self._order.uses.read_bytes[-1])
        self._read_before += former if 2 * self._read > former else self._read
        self._order, self._read, self._epoch = order, 0, self._epoch + 1

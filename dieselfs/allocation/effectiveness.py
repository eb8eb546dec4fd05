"""Delayed effectiveness: what a job caches in an epoch helps it in the next one (SiloD §6).

Allocated, held and effective bytes are three numbers. A dataset's cache holds a set of chunks. Each
job of the dataset has a bitset of the chunks that it has read in its present epoch, and will not
read again in it. So a cached chunk is effective for those jobs that have not read it yet, whoever
fetched it, and one cache may be effective for one job and not for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The cache of a dataset, as one of its jobs sees it."""

    allocated_bytes: int
    """The quota."""
    held_bytes: int
    effective_bytes: float
    """The bytes that give the job's present hit share, effective_bytes / dataset_bytes."""


class CachedChunkSet:
    """The chunks of a dataset that are in the cache."""

    def __init__(self, chunk_bytes: Sequence[int]) -> None:
        self.chunk_bytes: npt.NDArray[np.int64] = np.asarray(chunk_bytes, dtype=np.int64)
        self.bits: Bits = np.zeros(len(self.chunk_bytes), dtype=np.bool_)

    @property
    def held_bytes(self) -> int:
        return int(self.chunk_bytes[self.bits].sum())

    def admit(self, chunks: Sequence[int]) -> None:
        """Put chunks, named by their places in `chunk_bytes`, into the cache."""
        self.bits[list(chunks)] = True

    def evict(self, chunks: Sequence[int]) -> None:
        self.bits[list(chunks)] = False


class JobEpoch:
    """The chunks of one dataset that one job has read in its present epoch."""

    def __init__(self, cache: CachedChunkSet, *, repeats_items: bool = False) -> None:
        """`repeats_items`: a chunk may be read again in the same epoch (`Job.repeats_items`)."""
        self._cache = cache
        self._repeats_items = repeats_items
        self._read: Bits = np.zeros(len(cache.bits), dtype=np.bool_)

    def read(self, chunks: Sequence[int]) -> None:
        """Note that the job has read chunks, from wherever they came."""
        self._read[list(chunks)] = True

    def begin(self) -> None:
        """Begin the next epoch: whatever is cached is effective now."""
        self._read[:] = False

    def effective_bytes(self) -> float:
        """Return the hit share of what is left of the epoch, times the size of the dataset.

        At the end of an epoch it is that of the next one.
        """
        sizes, cached = self._cache.chunk_bytes, self._cache.bits
        left = np.ones_like(self._read) if self._repeats_items else ~self._read
        left_bytes = int(sizes[left].sum())
        if left_bytes == 0:
            return float(self._cache.held_bytes)
        return float(sizes[left & cached].sum()) / left_bytes * float(sizes.sum())

    def cache_use(self, quota_bytes: int) -> CacheUse:
        """Return the three numbers."""
        return CacheUse(quota_bytes, self._cache.held_bytes, self.effective_bytes())

"""Two small interfaces: admission of missed chunks, and reinsertion of evicted segments.

Each node decides for itself (Tectonic-Shift §5.1). A policy that knows the jobs can decide better;
it implements these interfaces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from chunkstore.ssd.eviction import Ranking
from chunkstore.ssd.policy_counts import DecidedRow, PolicyCounts
from chunkstore.ssd.segment_index import Region
from chunkstore.ssd.segments import Segment

REMEMBERED: Final = 1 << 20
"""Chunks that `RejectFirst` remembers: about 100 MB of memory, for 4 TB of data."""


class Admission(Protocol):
    """A policy that decides which missed chunks are cached on the SSD. Thread-safe."""

    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        """Return whether to cache a chunk; called at each miss, before the tier fetches it."""
        ...


class Reinsertion(Protocol):
    """A policy that decides which segments of an evicted region are kept. Thread-safe."""

    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments of a reused region that are kept; they are written again."""
        ...


class RegionPolicy(Reinsertion, Protocol):
    """A policy that decides which regions are evicted, and which chunks share one. Thread-safe."""

    def ranking(self, otherwise: Ranking) -> Ranking:
        """Return the order of eviction: `otherwise` if the policy predicts nothing."""
        ...

    def taken(self, region: Region, *, has_free: bool) -> None:
        """Take note that a region was taken for filling; `has_free`: another one is free."""
        ...

    def take_counts(self) -> Mapping[DecidedRow, PolicyCounts]:
        """Return what was counted since the last call."""
        ...

    def fill_class(self, chunk: bytes, start: int) -> int:
        """Return to which of the dataset's open regions byte `start` of a chunk's object goes."""
        ...


class AdmitAll:
    """An admission policy that admits every chunk."""

    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        """Return True."""
        return True


class RejectFirst:
    """A policy that admits a chunk at its second miss: a chunk read once never costs a write."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._limit = remembered
        self._missed: OrderedDict[bytes, None] = OrderedDict()

    def __reduce__(self) -> tuple[type[RejectFirst], tuple[int]]:
        return type(self), (self._limit,)

    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        """Return whether the chunk was missed before, and remember the miss if not."""
        # Each step is one dictionary operation. Threads may interleave, so a miss may be forgotten.
        if chunk in self._missed:
            self._missed.pop(chunk, None)
            return True
        self._missed[chunk] = None
        if len(self._missed) > self._limit:
            self._missed.popitem(last=False)
        return False


class ReinsertNothing:
    """A reinsertion policy that keeps nothing."""

    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return no segments."""
        return ()

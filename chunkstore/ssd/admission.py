"""Whether a missed chunk comes onto the SSD, and whether what leaves stays after all: two small ports (Tectonic-Shift §5.1).

Decisions are local to a node. Who knows the jobs can decide better: such policies are put in here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from chunkstore.ssd.segments import Segment

REMEMBERED: Final = 1 << 20
"""Chunks that *reject first* remembers: about 100 MB, 4 TB of data."""


class Admission(Protocol):
    """Thread-safe."""

    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        """Asked at each miss of a chunk, before it is fetched for the tier."""
        ...


class Reinsertion(Protocol):
    """Thread-safe."""

    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Of the segments of a region that is used again, those to be kept; they are written once more."""
        ...


class AdmitAll:
    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        return True


class RejectFirst:
    """A chunk is admitted at its second miss: what is read once never costs a write."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._limit = remembered
        self._missed: OrderedDict[bytes, None] = OrderedDict()

    def __reduce__(self) -> tuple[type[RejectFirst], tuple[int]]:
        return type(self), (self._limit,)

    def admits(self, dataset: bytes, chunk: bytes) -> bool:
        # One dictionary operation each: threads may come between, and a miss be forgotten.
        if chunk in self._missed:
            self._missed.pop(chunk, None)
            return True
        self._missed[chunk] = None
        if len(self._missed) > self._limit:
            self._missed.popitem(last=False)
        return False


class ReinsertNothing:
    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        return ()

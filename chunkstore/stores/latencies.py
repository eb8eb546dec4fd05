"""Recent latencies by kind of read, which tell how long a normal read takes."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from chunkstore.stores.read import ReadKind

_KEPT: Final = 1024
"""Latencies kept for each kind.

If 1% of the reads are late, about 10 of those kept are late ones, far fewer than the 20 above the
98th percentile, so they do not move it.
"""
_LOOKED_AT_EVERY: Final = 32
"""Reads between two evaluations: sorting 1,024 numbers takes 30 µs, so 1 µs a read."""
_KINDS: Final = 64


class _OfKind:
    __slots__ = ("latencies_s", "median_s", "quantile_s", "seen")

    def __init__(self) -> None:
        self.latencies_s: deque[float] = deque(maxlen=_KEPT)
        self.seen = 0
        self.median_s = self.quantile_s = 0.0


class Latencies:
    """The median and one quantile of each kind. Not thread-safe."""

    def __init__(self, quantile: float, enough: int) -> None:
        self._quantile = quantile
        self._enough = enough
        self._kinds: OrderedDict[ReadKind, _OfKind] = OrderedDict()

    def observe(self, kind: ReadKind, seconds: float) -> None:
        """Record the latency of a read. Takes about 2 µs, amortised."""
        of_kind = self._kinds.get(kind)
        if of_kind is None:
            of_kind = self._kinds[kind] = _OfKind()
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        of_kind.latencies_s.append(seconds)
        of_kind.seen += 1
        if of_kind.seen == self._enough or of_kind.seen % _LOOKED_AT_EVERY == 0:
            ordered = sorted(of_kind.latencies_s)
            of_kind.median_s = ordered[len(ordered) // 2]
            of_kind.quantile_s = ordered[int(len(ordered) * self._quantile)]

    def usual_s(self, kind: ReadKind) -> tuple[float, float] | None:
        """Return median and quantile, or None before `enough` reads of the kind were seen."""
        of_kind = self._kinds.get(kind)
        if of_kind is None or of_kind.seen < self._enough:
            return None
        return of_kind.median_s, of_kind.quantile_s

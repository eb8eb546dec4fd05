"""A process's view of its own reading: its speed, and how much of it is cached and effective."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dieselfs.allocation.estimator import IdealRate, ReadInterval, measured_ideal_rate

_REMEMBERED: Final = 60
"""The beats over which the ideal rate is measured."""
_WAITS_S: Final = 5.0
"""The time over which waits are measured."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far the readers of a process are."""

    epoch: int | None
    """None: no order is known, so a chunk may be read several times in an epoch."""
    read_bytes: int
    """The bytes that they have read since the process began, from wherever they came."""
    waited_s: float
    """How long they have waited for it."""


class MeasuredSpeed:
    """The ideal rate f* of one process's readers, as far as it can be seen (SiloD §4)."""

    def __init__(self) -> None:
        self._intervals: deque[ReadInterval] = deque(maxlen=_REMEMBERED)
        self._last: tuple[JobProgress, float] | None = None

    def note(self, progress: JobProgress, now: float) -> None:
        """Take note of the progress at a time; call it about once a second."""
        if self._last is not None:
            former, at = self._last
            read = progress.read_bytes - former.read_bytes
            if read > 0 and now > at:
                waited = max(0.0, progress.waited_s - former.waited_s)
                self._intervals.append(ReadInterval(read, now - at, waited))
        self._last = progress, now

    @property
    def rate(self) -> IdealRate | None:
        """The rate while nothing waited, or else a lower bound; None if nothing was read."""
        return measured_ideal_rate(self._intervals)


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """How much of the dataset is cached where a reader's quota is kept, and in which units.

    A tier keeps quotas in whole regions, with their tables. So a quota as large as the dataset
    would not hold all of it, and a job at full speed would wait for the rest in each epoch.
    """

    held_bytes: Callable[[], int] = lambda: 0
    taken_bytes: Callable[[int], int] = lambda held_bytes: held_bytes
    """Return what the quota is charged for what is held."""
    needed_bytes: Callable[[int], int] = lambda dataset_bytes: dataset_bytes
    """Return a quota that holds a dataset of this size."""
    region_bytes: Callable[[], int] = lambda: 0
    """The size of a region; 0: quotas are kept to the byte."""

    def charged(self, dataset_bytes: int, held_bytes: int, effective_bytes: int) -> Charged:
        """Return these sizes as a quota counts them; all that is cached needs what it takes."""
        if not dataset_bytes:
            return Charged(0, held_bytes, effective_bytes)
        taken = self.taken_bytes(held_bytes)
        is_whole = held_bytes >= dataset_bytes
        needed = taken if is_whole else max(taken, self.needed_bytes(dataset_bytes))
        share = effective_bytes / held_bytes if held_bytes else 0.0
        return Charged(needed, taken, round(share * taken))


class Charged(NamedTuple):
    """A dataset's size, and what of it is cached and effective, in bytes of a quota."""

    dataset_bytes: int
    held_bytes: int
    effective_bytes: int


class EffectiveBytes:
    """How much of what is cached the readers hit in their present epoch (SiloD §6).

    They are the bytes that were cached when the epoch began, and have stayed. With uniform caching
    nothing takes their place, so the least of what is held since then says it. Without a known
    order files of a chunk are read at any time of an epoch, so all that is held is effective.
    """

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        self._held_bytes = held_bytes
        self._epoch: int | None = None
        self.held_bytes = self.effective_bytes = 0

    def note(self, epoch: int | None) -> None:
        """Take note of what is held now."""
        self.held_bytes = self._held_bytes()
        if epoch is None or epoch != self._epoch:
            self._epoch, self.effective_bytes = epoch, self.held_bytes
        self.effective_bytes = min(self.effective_bytes, self.held_bytes)


class Waits:
    """For how much of the last seconds readers waited for the store, and not for their budget."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, float]] = deque()
        self.starved = 0.0
        """A share of the time, 0 to 1."""

    def note(self, now: float, waited_s: float, bound_s: float) -> None:
        """Take note of the seconds that reads have waited, and those that the budget was bound.

        Both count since the process began. A wait while the budget is bound counts as one for the
        budget.
        """
        samples = self._samples
        samples.append((now, waited_s, bound_s))
        while now - samples[0][0] > _WAITS_S:
            samples.popleft()
        since, waited, bound = samples[0]
        elapsed = now - since
        if elapsed > 0:
            of_reads = min(1.0, max(0.0, waited_s - waited) / elapsed)
            of_budget = min(1.0, max(0.0, bound_s - bound) / elapsed)
            self.starved = of_reads * (1.0 - of_budget)

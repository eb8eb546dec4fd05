"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dieselfs.allocation.jobs import JobState, Resources


def first_come(waiting: Sequence[JobState], total: Resources) -> Iterable[JobState]:
    """Sort jobs by the time at which they were submitted, and keep the order of equal ones."""
    return sorted(waiting, key=lambda state: state.job.submitted_s)

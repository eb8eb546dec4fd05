"""The figures of allocated readers, from what they have noted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.allocated_reader import ReaderProcess


def most_in(left: Sequence[tuple[float, int]], window_s: float) -> float:
    """The most bytes that left within any time of this length."""
    most = total = 0
    first = 0
    for at, size in left:
        total += size
        while left[first][0] < at - window_s:
            total -= left[first][1]
            first += 1
        most = max(most, total)
    return most


def left_of(
    readers: Sequence[ReaderProcess], since: float, until: float
) -> list[tuple[float, int]]:
    """The bytes that left the store for all of them between two times, in order."""
    events = itertools.chain.from_iterable(each.noted.left for each in readers)
    return sorted(event for event in events if since <= event[0] < until)


def most_allowed(readers: Sequence[ReaderProcess], since: float, until: float) -> float:
    """The most that all readers were allowed together at any time."""
    events = sorted(
        (at, number, float("inf") if rate is None else rate)
        for number, each in enumerate(readers)
        for at, rate in each.noted.allowed
    )
    now = [0.0] * len(readers)
    most = 0.0
    for at, number, rate in events:
        now[number] = rate
        if since <= at < until:
            most = max(most, sum(now))
    return most


def near_after_s(readers: Sequence[ReaderProcess], since: float, until: float) -> float:
    """The seconds from `since` until each job's rate stays within 5 % of what it is at the end."""
    series = {
        each: [(at, rate or 0.0) for at, rate in each.noted.allowed if since <= at < until]
        for each in readers
    }
    jobs = {each.kind.job for each in readers if series[each]}
    latest = since
    for job in jobs:
        of_job = [found for each, found in series.items() if each.kind.job == job and found]
        for samples in zip(*of_job, strict=False):
            total = sum(rate for _, rate in samples)
            last = sum(found[-1][1] for found in of_job)
            if abs(total - last) > 0.05 * last:
                latest = max(latest, *(at for at, _ in samples))
    return latest - since


def obeyed_after_s(readers: Sequence[ReaderProcess], since: float, rate: float) -> float:
    """The seconds from `since` until the readers of a job have `rate` together, within 5 %."""
    after = [[each for each in reader.noted.allowed if each[0] >= since] for reader in readers]
    return next(
        max(at for at, _ in samples) - since
        for samples in zip(*after, strict=False)
        if abs(sum(found or 0.0 for _, found in samples) / rate - 1) <= 0.05
    )


def are_near(rates: dict[str, float], before: dict[str, float]) -> bool:
    return rates.keys() == before.keys() and all(
        abs(rates[job] / before[job] - 1) <= 0.05 for job in before
    )

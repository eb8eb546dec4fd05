"""What does a known order save beside uniform caching and LRU? For `bench_silod`: replays.

One job that reads each item once an epoch gains nothing, whatever it tells. Jobs that share a
dataset do, and so do draws with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import report
from dieselfs.allocation.known_hits import ToldHits, drawn_hits
from dieselfs.allocation.simulation.known_orders import (
    Rule,
    SharedReads,
    belady_share,
    epoch_course,
    fetched_share,
)

SHARES = (0.1, 0.25, 0.5, 0.75)
PARTS = 10
ITEMS = 1000
WINDOW = ITEMS // 250
"""As 8 chunks under way of a dataset of 2,000."""
EXPECTED = {
    "2 jobs": (0.31, 0.50, 0.72, 0.88),
    "4 jobs": (0.36, 0.56, 0.77, 0.91),
    "draws": (0.40, 0.61, 0.81, 0.93),
}
"""Belady's hits as known before."""
RULES: Sequence[Rule] = ("plan", "uniform", "lru")
CASES = {
    "2 jobs": SharedReads(ITEMS, (1, 1), epochs=8),
    "4 jobs": SharedReads(ITEMS, (1, 1, 1, 1)),
    "draws": SharedReads(ITEMS, (1,), epochs=12, draws=True),
    "2 jobs, uneven": SharedReads(ITEMS, (1, 1), epochs=8, jitter=1.0),
    "2 jobs, 3 to 1": SharedReads(ITEMS, (3, 1)),
    "2 jobs, 10 to 1": SharedReads(ITEMS, (10, 1), epochs=4),
}
LATE = {
    "2 jobs": SharedReads(ITEMS, (1, 1), epochs=8, tells_next=False),
    "4 jobs": SharedReads(ITEMS, (1, 1, 1, 1), tells_next=False),
}
"""Jobs that tell an epoch's order when the one before is over."""
BAR = 0.9


def one_job() -> None:
    """Report the bytes of the store an epoch, over those of the dataset.

    The plan needs no room for its window beside what it keeps: the hits of Belady's choice come
    first in an epoch, and what is kept for the next one grows as they go. `epoch_time` is that of a
    job without fetching ahead over its ideal one, with the remote IO that would be just enough if
    hits came evenly.
    """
    reads = SharedReads(ITEMS, (1,))
    for window in (0, WINDOW):
        for share in SHARES:
            memory = round(share * ITEMS)
            found = {rule: fetched_share(reads, memory, rule, window) for rule in RULES}
            expected = 1 - share + window / ITEMS
            report(
                "known order, one job",
                cached_share=share,
                window_share=window / ITEMS,
                store_share=found,
                expected_share=expected,
                off={rule: found[rule] / expected - 1 for rule in ("plan", "uniform")},
                bar=0.02,
                epoch_time={rule: epoch_time(reads, memory, rule) for rule in RULES},
            )


def epoch_time(reads: SharedReads, memory: int, rule: Rule) -> float:
    """Return the time of an epoch over that in which nothing waits."""
    io = 1 - memory / reads.items
    course = epoch_course(reads, memory, rule, PARTS)
    return sum(max(1.0, misses / io) for misses in course) / PARTS


def shared() -> None:
    """Report the hits of Belady, of the merged orders, and of caches that know none."""
    for case, reads in CASES.items():
        for number, share in enumerate(SHARES):
            memory = round(share * ITEMS)
            belady = belady_share(reads, memory)
            hits = {rule: 1 - fetched_share(reads, memory, rule) for rule in RULES}
            late = 1 - fetched_share(LATE[case], memory, "plan") if case in LATE else None
            report(
                "known order, shared",
                case=case,
                cached_share=share,
                belady_hits=belady,
                expected_hits=EXPECTED[case][number] if case in EXPECTED else None,
                hits=hits,
                over_belady=hits["plan"] / belady,
                told_late_over_belady=None if late is None else late / belady,
                bar=BAR,
                estimated_hits=estimated(reads, share),
            )


def estimated(reads: SharedReads, share: float) -> float:
    """Return the estimator's hits."""
    if reads.draws:
        return drawn_hits(share)
    return ToldHits(sum(reads.speeds) ** 2 / sum(speed**2 for speed in reads.speeds))(share)

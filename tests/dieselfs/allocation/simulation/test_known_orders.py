"""Replays of known orders: the bound of one job, and what jobs that share a dataset gain."""

from __future__ import annotations

import pytest

from dieselfs.allocation.known_hits import ToldHits, drawn_hits
from dieselfs.allocation.simulation.known_orders import (
    Rule,
    SharedReads,
    belady_share,
    epoch_course,
    fetched_share,
)

ITEMS = 300
SHARES = (0.1, 0.25, 0.5, 0.75)
TWO, FOUR = SharedReads(ITEMS, (1, 1)), SharedReads(ITEMS, (1, 1, 1, 1), epochs=4)
DRAWS = SharedReads(ITEMS, (1,), epochs=12, draws=True)


BESIDE_EACH_OTHER: tuple[Rule, ...] = ("plan", "uniform")


def memory(share: float) -> int:
    return round(share * ITEMS)


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("share", SHARES)
def test_for_one_job_no_order_beats_uniform_caching(share: float, window: int) -> None:
    reads = SharedReads(ITEMS, (1,))
    expected = 1 - share + window / ITEMS
    plan, uniform = (
        fetched_share(reads, memory(share), rule, window) for rule in ("plan", "uniform")
    )
    assert plan == pytest.approx(expected, rel=0.02)
    assert uniform == pytest.approx(expected, rel=0.02)
    assert 1 - belady_share(reads, memory(share)) == pytest.approx(1 - share, rel=0.01)
    assert fetched_share(reads, memory(share), "lru") > uniform + 0.05


def test_the_hits_of_belady_come_first_in_an_epoch() -> None:
    """So a job that fetches nothing ahead leaves remote IO idle, and then waits for it."""
    reads = SharedReads(ITEMS, (1,))
    plan, uniform = (epoch_course(reads, ITEMS // 2, rule, 4) for rule in BESIDE_EACH_OTHER)
    assert plan == [0, 0, 1, 1]
    assert uniform == pytest.approx([0.5] * 4, abs=0.1)


@pytest.mark.parametrize(
    ("reads", "figures"),
    [
        (TWO, (0.31, 0.50, 0.72, 0.88)),
        (FOUR, (0.36, 0.56, 0.77, 0.91)),
        (DRAWS, (0.40, 0.61, 0.81, 0.93)),
    ],
)
def test_belady_and_merged_orders(reads: SharedReads, figures: tuple[float, ...]) -> None:
    for share, figure in zip(SHARES, figures, strict=True):
        belady = belady_share(reads, memory(share))
        assert belady == pytest.approx(figure, abs=0.03)
        assert 1 - fetched_share(reads, memory(share), "plan") >= 0.95 * belady


@pytest.mark.parametrize(
    "reads",
    [
        SharedReads(ITEMS, (1, 1), tells_next=False),
        SharedReads(ITEMS, (1, 1), jitter=1.0),
        SharedReads(ITEMS, (3, 1), jitter=0.5),
        SharedReads(ITEMS, (5, 4, 1), epochs=3, jitter=0.5),
    ],
)
def test_what_is_told_late_or_read_unevenly_costs_a_tenth_at_most(reads: SharedReads) -> None:
    for share in (0.25, 0.5):
        merged = 1 - fetched_share(reads, memory(share), "plan")
        assert merged >= 0.9 * belady_share(reads, memory(share))


@pytest.mark.parametrize("rule", ["uniform", "lru"])
def test_caches_that_know_no_order_gain_nothing_by_sharing(rule: Rule) -> None:
    assert 1 - fetched_share(TWO, memory(0.5), rule) < 0.51


@pytest.mark.parametrize("jobs", [2, 3, 8])
def test_the_closed_form_is_that_of_replays(jobs: int) -> None:
    reads = SharedReads(1000, (1,) * jobs, epochs=4)
    for share in (0.25, 0.5, 0.75):
        assert ToldHits(jobs)(share) == pytest.approx(
            belady_share(reads, round(share * 1000)), rel=0.03
        )


def test_the_closed_form_of_draws() -> None:
    reads = SharedReads(1000, (1,), epochs=12, draws=True)
    for share in (0.25, 0.5, 0.75):
        assert drawn_hits(share) == pytest.approx(
            belady_share(reads, round(share * 1000)), rel=0.02
        )


def test_the_same_seed_gives_the_same_figures() -> None:
    assert fetched_share(TWO, 150, "plan") == fetched_share(TWO, 150, "plan")
    assert SharedReads(seed=2).orders() != SharedReads(seed=3).orders()

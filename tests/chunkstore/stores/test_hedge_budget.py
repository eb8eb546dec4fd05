from __future__ import annotations

import pytest

from chunkstore.stores.hedge_budget import HedgeBudget


def spent(budget: HedgeBudget, reads: int, won: bool) -> int:
    """Second requests in so many reads that are all late."""
    count = 0
    for _ in range(reads):
        budget.earn()
        if budget.spend():
            count += 1
            budget.learn(won)
    return count


def test_in_the_long_run_the_share_and_no_more() -> None:
    assert 0.024 * 10_000 <= spent(HedgeBudget(0.025, 8), 10_000, won=True) <= 0.025 * 10_000


@pytest.mark.parametrize("burst", [1, 8])
def test_no_more_than_the_burst_at_once(burst: int) -> None:
    budget = HedgeBudget(0.025, burst)
    assert not budget.spend()
    for _ in range(10_000):
        budget.earn()
    assert [budget.spend() for _ in range(burst + 1)] == [True] * burst + [False]


def test_what_is_never_answered_first_is_sent_a_tenth_as_often() -> None:
    budget = HedgeBudget(0.025, 8)
    spent(budget, 10_000, won=False)
    assert 20 <= spent(budget, 10_000, won=False) <= 30


def test_it_is_noticed_when_it_becomes_worth_it() -> None:
    budget = HedgeBudget(0.025, 8)
    spent(budget, 10_000, won=False)
    spent(budget, 10_000, won=True)
    assert spent(budget, 10_000, won=True) >= 240

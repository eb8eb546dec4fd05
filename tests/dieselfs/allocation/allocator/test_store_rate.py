"""A store that gives less than promised, in a model of it, with a clock that the test moves."""

import pytest

from dieselfs.allocation.allocator.store_rate import LEAST_BYTES_PER_S, StoreRate
from dieselfs.allocation.directory.reader_lease import NO_LIMIT, ReaderLease
from tests.dieselfs.allocation.made_leases import lease

PROMISED = 90e6


class Store:
    """A store that gives jobs `gives` bytes a second in all, each as much as it has in turn.

    The shares of the jobs are those of an allocator that divides what it is told equally.
    """

    def __init__(self, gives: float, *demands: float) -> None:
        self.gives, self.demands, self.now = gives, demands, 0.0
        self.most = [float("inf") for _ in demands]
        """What a job can use at most by itself, though it waits."""
        self.rate = StoreRate()
        self.total = PROMISED

    def leases(self) -> list[ReaderLease]:
        allowed = self.total / len(self.demands)
        asks = [
            min(allowed, demand, most) for demand, most in zip(self.demands, self.most, strict=True)
        ]
        scale = min(1.0, self.gives / sum(asks))
        return [
            lease(
                f"job-{number}",
                allowed_bytes_per_s=allowed,
                used_bytes_per_s=ask * scale,
                bound=1.0 if scale == 1 and ask == allowed and demand > allowed else 0.0,
                starved=0.5 if ask * scale < min(demand, allowed) else 0.0,
            )
            for number, (ask, demand) in enumerate(zip(asks, self.demands, strict=True))
        ]

    def run(self, seconds: int) -> list[float]:
        totals = []
        for _ in range(seconds):
            self.now += 1
            self.total = self.rate.note(self.leases(), PROMISED, self.now)
            totals.append(self.total)
        return totals


def test_half_the_bandwidth_is_seen_within_30_s_and_given_back_within_a_minute() -> None:
    store = Store(PROMISED, 60e6, 60e6)
    assert store.run(60) == [PROMISED] * 60
    store.gives = PROMISED / 2
    assert store.run(30)[-1] == pytest.approx(PROMISED / 2, rel=0.35)
    totals = store.run(300)
    assert max(totals) <= 0.7 * PROMISED
    assert min(totals) == pytest.approx(PROMISED / 2)
    assert sum(totals) / len(totals) == pytest.approx(PROMISED / 2, rel=0.15)
    store.gives = PROMISED
    assert store.run(60)[-1] == PROMISED


def test_a_store_that_falls_further_is_followed() -> None:
    store = Store(PROMISED / 2, 60e6, 60e6)
    store.run(60)
    store.gives = PROMISED / 8
    assert min(store.run(30)) == pytest.approx(PROMISED / 8)


def test_jobs_that_need_no_more_than_they_use_say_nothing_of_the_store() -> None:
    store = Store(PROMISED / 2, 10e6, 15e6)
    assert store.run(60) == [PROMISED] * 60


def test_a_job_that_is_slow_by_itself_takes_nothing_from_jobs_that_wait_for_their_budgets() -> None:
    store = Store(PROMISED, 60e6, 60e6)
    store.most = [5e6, float("inf")]
    assert store.run(120) == [PROMISED] * 120


def test_a_job_that_comes_beside_one_that_is_slow_by_itself_has_its_share_within_a_minute() -> None:
    store = Store(PROMISED, 60e6)
    store.most = [9e6]
    assert store.run(60)[-1] == pytest.approx(9e6, rel=0.25)
    store.demands, store.most = (60e6, 60e6), [9e6, float("inf")]
    totals = store.run(60)
    assert totals[-1] == PROMISED


def test_readers_without_a_limit_and_none_at_all_say_nothing() -> None:
    rate = StoreRate()
    unlimited = lease("a", allowed_bytes_per_s=NO_LIMIT, used_bytes_per_s=1e6, starved=1.0)
    assert {rate.note(leases, PROMISED, now) for now in range(30) for leases in ([unlimited], [])}
    assert rate.note([unlimited], PROMISED, 30.0) == PROMISED


def test_a_store_that_gives_nothing_leaves_a_least() -> None:
    store = Store(0.0, 60e6)
    assert min(store.run(30)) == LEAST_BYTES_PER_S


def test_what_is_promised_may_change_meanwhile() -> None:
    store = Store(PROMISED / 2, 60e6, 60e6)
    store.run(60)
    assert store.rate.note([], 10e6, store.now + 1) == 10e6

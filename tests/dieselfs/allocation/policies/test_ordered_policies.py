"""FIFO with each cache system: the allocations of Section 7.1.1, sharing, admission."""

from __future__ import annotations

import random

import pytest

from dieselfs.allocation.jobs import Allocation, Resources
from dieselfs.allocation.policies.fair_share import fair_shares
from dieselfs.allocation.policies.naming import ORDERS, SYSTEMS, named_policy, policy_of
from dieselfs.errors import UsageError
from tests.dieselfs.allocation.made_jobs import (
    GB,
    MB,
    TABLE_6_TOTAL,
    TB,
    check_sums,
    in_steady_state,
    job,
    random_jobs,
    random_total,
    running,
    table_6_jobs,
    waiting,
)


def test_fair_shares_leave_small_demands_alone() -> None:
    assert fair_shares([8, 114, 69, 69, 114], 200) == pytest.approx([8, 48, 48, 48, 48])
    assert fair_shares([1, 2], 10) == [1, 2]
    assert fair_shares([], 10) == []
    assert fair_shares([10, 10, 1], 8, [3, 1, 1]) == pytest.approx([5.25, 1.75, 1])


def table_6(system: str) -> Allocation:
    return in_steady_state(policy_of("fifo", system), table_6_jobs(), TABLE_6_TOTAL)


@pytest.mark.parametrize("system", ["silod", "algorithm-2"])
def test_silod_serves_all_jobs_of_figure_9(system: str) -> None:
    found = table_6(system)
    assert found.cache_bytes["resnet-1"] == 1300 * GB
    assert found.cache_bytes["resnet-2"] == 700 * GB
    io = {name: share / MB for name, share in found.io_bytes_per_s.items()}
    assert io["resnet-1"] == 0
    assert io["resnet-2"] == pytest.approx(52.6, abs=0.05)
    assert io["efficientnet-1"] == io["efficientnet-2"] == pytest.approx(69)
    assert io["bert"] == pytest.approx(8)


def test_quiver_leaves_700_gb_unused() -> None:
    quotas = table_6("quiver").cache_bytes
    assert [name for name, quota in quotas.items() if quota] == ["resnet-1"]
    assert sum(quotas.values()) == 1300 * GB


def test_coordl_gives_half_of_the_cache_to_bert() -> None:
    quotas = table_6("coordl").cache_bytes
    assert quotas["web-search"] == 1 * TB
    assert {quota for name, quota in quotas.items() if name != "web-search"} == {250 * GB}


def test_alluxio_has_no_quotas() -> None:
    found = table_6("alluxio")
    assert found.is_lru
    assert not found.cache_bytes


@pytest.mark.parametrize("system", SYSTEMS)
def test_nobody_hits_in_the_first_epoch(system: str) -> None:
    found = policy_of("fifo", system).schedule(table_6_jobs(), TABLE_6_TOTAL)
    assert sorted(found.io_bytes_per_s.values()) == pytest.approx([8 * MB] + [48 * MB] * 4)


def test_jobs_of_a_dataset_are_charged_once_and_counted_together() -> None:
    shared = [job("a", 100, 30, dataset="common"), job("b", 100, 30, dataset="common")]
    alone = job("c", 100, 50)
    for system in ("silod", "algorithm-2", "quiver"):
        found = policy_of("fifo", system).schedule(
            [waiting(made) for made in (alone, *shared)], Resources(8, 150 * GB, 100 * MB)
        )
        assert found.cache_bytes["common"] == 100 * GB
        assert found.cache_bytes["c"] == (0 if system == "quiver" else 50 * GB)


def test_first_come_first_served_without_overtaking() -> None:
    first, wide, last = job("a"), job("b", gpus=8), job("c")
    never = job("absurd", gpus=64)
    states = [waiting(made) for made in (first, never, wide, last)]
    found = policy_of("fifo", "silod").schedule(states, Resources(8, 0, 1.0))
    assert found.gpus == {"a": 1, "b": 0, "c": 0, "absurd": 0}
    states = [waiting(wide), waiting(last), running(first)]
    found = policy_of("fifo", "silod").schedule(states, Resources(9, 0, 1.0))
    assert found.gpus == {"a": 1, "b": 8, "c": 0}


def test_what_is_evicted_is_no_longer_effective() -> None:
    better, worse = job("better", 100, 200, 2), job("worse", 100, 100, 50)
    states = [running(better), running(worse, effective_gb=80, held_gb=100)]
    found = policy_of("fifo", "algorithm-2").schedule(states, Resources(2, 150 * GB, 1e9))
    assert found.cache_bytes == {"better": 100 * GB, "worse": 50 * GB}
    # Half of what is held goes, and half of the effective bytes with it: 40 of 100 GB are left.
    assert found.io_bytes_per_s["worse"] == pytest.approx(60 * MB)


def test_irregular_jobs_have_a_part_of_their_own() -> None:
    regular = [job(name, 100, 100) for name in "abc"]
    odd = job("odd", 100, 100, regular=False)
    states = [waiting(made) for made in (*regular, odd)]
    for order in ORDERS:
        found = policy_of(order, "silod").schedule(states, Resources(4, 200 * GB, 200 * MB))
        assert found.irregular_cache_bytes == 50 * GB
        assert sum(found.cache_bytes.values()) == 150 * GB
        assert "odd" not in found.cache_bytes
        assert found.io_bytes_per_s["odd"] == pytest.approx(50 * MB)
        assert found.gpus["odd"] == 1
    # What the irregular job does not need, the regular ones have, and the other way round.
    slow = job("odd", 100, 10, regular=False)
    found = policy_of("fifo", "silod").schedule(
        [waiting(made) for made in (*regular, slow)], Resources(4, 200 * GB, 200 * MB)
    )
    assert found.io_bytes_per_s["a"] == pytest.approx(190 / 3 * MB)
    only = policy_of("max-min", "silod").schedule([waiting(odd)], Resources(4, GB, 5.0))
    assert only.io_bytes_per_s == {"odd": 5.0}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("order", ORDERS)
def test_sums_are_within_the_totals(order: str, system: str) -> None:
    chance = random.Random(7)
    for _ in range(5):
        states = random_jobs(chance, chance.randint(1, 30), 12)
        total = random_total(chance, states)
        policy = policy_of(order, system)
        found = policy.schedule(states, total)
        check_sums(found, states, total)
        check_sums(in_steady_state(policy, states, total), states, total)
        assert found == policy.schedule(states, total)
    assert not policy.schedule([], total).io_bytes_per_s


def test_unknown_names() -> None:
    for order, system in (("lifo", "silod"), ("fifo", "redis")):
        with pytest.raises(UsageError, match="unknown"):
            policy_of(order, system)
    with pytest.raises(UsageError, match="unknown policy 'best'"):
        named_policy("best")
    assert all(named_policy(name) for name in ("greedy", *ORDERS))

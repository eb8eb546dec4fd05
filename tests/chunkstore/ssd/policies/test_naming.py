"""All policies by name, and CacheLib's baselines."""

from __future__ import annotations

import random

import pytest

from chunkstore.ssd.policies.baselines import RandomRejection, RejectFirstMiss
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.names import NAMES
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.priority import PRIORITIES
from chunkstore.ssd.policies.segment_buckets import Bucket

A = Bucket("d:a")


@pytest.mark.parametrize("name", NAMES)
def test_each_policy_is_fed_in_the_same_way(name: str) -> None:
    policy: CachePolicy = policy_of(PolicySettings(name, write_budget=1000))
    policy.publish(JobSpecification("j", "d", (A,)), 0)
    for now in (0, 10, 5):
        policy.refresh(now)
        policy.requested("j", A, 2**64 - 1, 100)
        if policy.admits(A, 2**64 - 1, 100):
            policy.written(100)
        assert policy.reinserts(A, 2**64 - 1, 100) in (False, True)


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no cache policy 'lru'; there are all, reject-first, "):
        policy_of(PolicySettings("lru"))


@pytest.mark.parametrize("budget", [None, 0, -1, float("nan")])
def test_dynamic_needs_a_write_budget(budget: float | None) -> None:
    with pytest.raises(ValueError, match="budget"):
        policy_of(PolicySettings("dynamic", write_budget=budget))


def test_all_admits_and_reject_first_does_at_the_second_miss() -> None:
    assert policy_of(PolicySettings("all")).admits(A, 1, 1)
    policy = RejectFirstMiss()
    assert [policy.admits(A, key, 1) for key in (1, 2, 1, 2, 3)] == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("misses", [20, 300, 5000])
def test_dynamic_keeps_the_write_rate_at_its_budget(misses: int) -> None:
    policy = RandomRejection(write_budget=1000, seed=3)
    choose, written = random.Random(5), 0
    for now in range(0, 6000, 10):
        policy.refresh(now)
        for _ in range(choose.randrange(misses // 2, 2 * misses)):
            if policy.admits(A, 0, 1000):
                policy.written(1000)
                written += 1000
    assert 0.9 < written / (1000 * 6000) < 1.05


def test_all_priorities_have_names() -> None:
    assert set(PRIORITIES) < set(NAMES)

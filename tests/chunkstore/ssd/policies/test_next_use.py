"""*next-use*: what is used soonest stays, and less is told by degrees."""

import numpy as np
import pytest

from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.next_use import NextUsePolicy
from chunkstore.ssd.policies.segment_buckets import Bucket

MIB = 1 << 20
HERE, ELSEWHERE = Bucket("d"), Bucket("other")
KEYS = list(range(100, 200))


def planned(
    job: str, position: int = 0, *, repeats: bool = False, order: list[int] = KEYS
) -> JobSpecification:
    plan = PlannedReads(f"{job}'s", np.array(order, np.uint32), position, 1.0, repeats)
    return JobSpecification(job, "d", (HERE,), plan=plan)


def following(*specifications: JobSpecification, **settings: float) -> NextUsePolicy:
    policy = NextUsePolicy(**settings)  # type: ignore[arg-type]
    for each in specifications:
        policy.publish(each, 0.0)
    policy.refresh(0.0)
    return policy


def test_it_is_known_by_its_name() -> None:
    assert isinstance(policy_of(PolicySettings("next-use")), NextUsePolicy)


def test_a_segment_is_admitted_if_it_is_used_sooner_than_what_is_evicted() -> None:
    policy = following(planned("one"), planned("two", order=KEYS[::-1]))
    policy.evicts_next(30.0)
    policy.requested("one", HERE, KEYS[0], MIB)
    assert not policy.admits(HERE, KEYS[0], MIB), "two reads it in 99 s"
    policy.requested("two", HERE, KEYS[99], MIB)
    policy.requested("one", HERE, KEYS[20], MIB)
    assert policy.admits(HERE, KEYS[25], MIB), "one reads it in 25 s"
    policy.evicts_next(None)
    assert policy.admits(HERE, KEYS[0], MIB), "there is room"
    policy.evicts_next(float("inf"))
    assert policy.admits(HERE, KEYS[0], MIB), "what would be evicted is of no use"


def test_what_no_job_reads_again_stays_out_of_a_full_cache() -> None:
    policy = following(planned("one"))
    policy.requested("one", HERE, KEYS[0], MIB)
    assert policy.admits(HERE, KEYS[0], MIB)
    policy.evicts_next(float("inf"))
    assert not policy.admits(HERE, KEYS[0], MIB)
    found = policy.next_uses([KEYS[0], KEYS[7]])
    assert found is not None
    assert found.tolist() == [float("inf"), 7.0]


def test_without_plans_nothing_is_predicted_and_future_decides() -> None:
    specification = JobSpecification("one", "d", (HERE,))
    policy = following(specification, JobSpecification("two", "d", (HERE,)))
    for job in ("one", "two"):
        policy.requested(job, HERE, 1, MIB)
    policy.refresh(10.0)
    assert policy.next_uses([1, 2]) is None
    assert policy.admits(HERE, 1, MIB)
    assert not policy.admits(ELSEWHERE, 2, MIB)


def test_a_job_that_repeats_is_two_passes() -> None:
    policy = following(JobSpecification("one", "d", (HERE,), repeats=True))
    policy.requested("one", HERE, 1, MIB)
    policy.refresh(10.0)
    assert policy.admits(HERE, 1, MIB)


def test_if_nobody_tells_anything_all_is_admitted_until_something_was_read_twice() -> None:
    policy = following()
    assert policy.admits(HERE, 1, MIB)
    for _ in range(2):
        policy.requested("", HERE, 1, MIB)
    policy.refresh(10.0)
    assert policy.admits(HERE, 1, MIB)
    assert not policy.admits(ELSEWHERE, 2, MIB)


def test_jobs_without_an_order_count_beside_those_with_one() -> None:
    untold = [JobSpecification(job, "other", (ELSEWHERE,)) for job in ("two", "three")]
    policy = following(planned("one"), *untold)
    for job in ("two", "three"):
        policy.requested(job, ELSEWHERE, 5000, MIB)
    policy.refresh(10.0)
    policy.evicts_next(1e6)
    assert policy.admits(ELSEWHERE, 5000, MIB)
    found = policy.next_uses([5000, 6000])
    assert found is not None
    assert 10.0 <= found[0] < 10.0 + 1800
    assert found[1] == float("inf"), "it was never asked for"


def test_a_job_whose_lease_ends_counts_no_more() -> None:
    policy = following(planned("one"))
    assert policy.next_uses([KEYS[3]]) is not None
    policy.refresh(61.0)
    assert policy.next_uses([KEYS[3]]) is None


def test_a_clock_that_is_set_back_ends_no_lease() -> None:
    policy = following(planned("one"))
    policy.refresh(-1e6)
    assert policy.next_uses([KEYS[3]]) is not None


def test_a_write_budget_prefers_segments_with_many_uses() -> None:
    jobs = [planned(f"job{number}") for number in range(4)]
    policy = following(*jobs, write_budget=float(MIB))
    for tick in range(1, 60):
        for each in jobs:
            policy.publish(each, tick * 10.0)
        for key in KEYS:
            policy.requested("job0", HERE, key, MIB)
            if policy.admits(HERE, key, MIB):
                policy.written(MIB)
        policy.refresh(tick * 10.0)
    policy.requested("job0", HERE, KEYS[0], MIB)
    many = sum(policy.admits(HERE, key << 16 | key, MIB) for key in KEYS)
    assert many < len(KEYS)


def test_reinsertion_is_by_next_use_too() -> None:
    policy = following(planned("one"))
    policy.evicts_next(50.0)
    assert policy.reinserts(HERE, KEYS[10], MIB)
    assert not policy.reinserts(HERE, KEYS[40], MIB), "that is hardly sooner"
    assert not policy.reinserts(HERE, KEYS[60], MIB)
    policy.evicts_next(None)
    assert not policy.reinserts(HERE, KEYS[10], MIB), "nothing needs the room"


@pytest.mark.parametrize("settings", [{"minimum": 0.0}, {"write_budget": float("nan")}])
def test_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        NextUsePolicy(**settings)  # type: ignore[arg-type]

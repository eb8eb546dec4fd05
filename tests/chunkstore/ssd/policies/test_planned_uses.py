"""Predicted uses of segments, against a plain model, and plans that are wrong."""

import math
import random

import numpy as np
import pytest

from chunkstore.ssd.policies import planned_uses
from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.planned_uses import FollowedPlan, FollowedPlans, PlannedUses, spread

KEYS = [key * 2654435761 % (1 << 32) for key in range(1, 101)]


def reads(
    order: list[int], position: int = 0, rate: float = 1.0, *, repeats: bool = False, id: str = "p"
) -> PlannedReads:
    return PlannedReads(id, np.array(order, np.uint32), position, rate, repeats)


def published(job: str, plan: PlannedReads | None, reader: str = "") -> JobSpecification:
    return JobSpecification(job, "d", (), reader=reader, plan=plan)


def follow(*specifications: JobSpecification, at: float = 0.0) -> FollowedPlans:
    plans = FollowedPlans()
    for each in specifications:
        plans.publish(each, at)
    plans.merge(specifications)
    return plans


def time_of(plan: FollowedPlan, key: int) -> float:
    """Return the time of a plan's next use of a segment that it has."""
    place = plan.keys.tolist().index(key)
    if place >= plan.position:
        return plan.begin_s + place * plan.seconds_per_key
    return plan.end_s + spread(key) * (plan.end_s - plan.begin_s) if plan.repeats else math.inf


def test_the_soonest_use_of_all_plans() -> None:
    slow, quick = reads(KEYS, 10, 1.0), reads(KEYS[::-1], 50, 10.0)
    uses = follow(published("slow", slow), published("quick", quick), at=1000.0).uses
    assert uses.next_uses([KEYS[30]]).tolist() == [1001.9]
    assert uses.next_uses([KEYS[10], KEYS[5], 7]).tolist() == [
        1000.0,
        pytest.approx(1004.4),
        np.inf,
    ]
    assert len(uses) == 200


@pytest.mark.parametrize("repeats", [False, True])
def test_single_and_many_look_ups_agree(repeats: bool) -> None:
    randoms = random.Random(1)
    plans = []
    for number in range(5):
        order = randoms.sample(KEYS, 60)
        told = reads(order, randoms.randrange(60), randoms.random(), repeats=repeats)
        plans.append(FollowedPlan(f"job{number}", told, float(number)))
    plans[2].is_trusted = False
    uses = PlannedUses(plans)
    for key, found in zip(KEYS, uses.next_uses(KEYS).tolist(), strict=True):
        times = [time_of(plan, key) for plan in plans if plan.is_trusted and key in plan.keys]
        coming = [time for time in times if time < math.inf]
        assert uses.next_use(key) == pytest.approx(min(times, default=math.inf))
        assert uses.coming(key) == len(coming)
        assert found == uses.next_use(key)


def test_a_search_ends_with_the_first_use_that_is_soon_enough() -> None:
    uses = follow(published("a", reads(KEYS)), published("b", reads(KEYS[::-1]))).uses
    assert uses.next_use(KEYS[60]) == 39.0
    assert uses.next_use(KEYS[60], enough=61.0) == 60.0
    assert uses.next_use(KEYS[60], enough=60.0) == 39.0


def test_high_bits_of_keys_do_not_matter() -> None:
    uses = follow(published("job", reads(KEYS))).uses
    high = KEYS[3] | 5 << 32
    assert uses.next_uses([high]).tolist() == uses.next_uses([KEYS[3]]).tolist() == [3.0]
    assert uses.next_use(high) == 3.0


def test_a_plan_that_repeats_spreads_the_next_epoch_by_the_key() -> None:
    plan = FollowedPlan("job", reads(KEYS, 50, 1.0, repeats=True), 100.0)
    assert PlannedUses([plan]).next_use(KEYS[60]) == 110.0
    assert PlannedUses([plan]).next_use(KEYS[10]) == 150.0 + 100 * spread(KEYS[10])
    ended = FollowedPlan("job", reads(KEYS, 50, 1.0), 100.0)
    assert PlannedUses([ended]).next_use(KEYS[10]) == math.inf


def test_requests_move_the_position_between_publications() -> None:
    plans = follow(published("job", reads(KEYS)))
    for key in KEYS[:20]:
        plans.uses.requested("job", key)
    assert plans.uses.next_uses(KEYS[:21]).tolist() == [np.inf] * 20 + [20.0]


def test_positions_that_are_published_wrong_are_corrected_by_requests() -> None:
    plans = follow(published("job", reads(KEYS * 10, 100, id="p")))
    keys = list(range(10_000))
    order = reads(keys, 4000)
    plans = follow(published("job", order))
    for key in keys[1000:1020]:
        plans.uses.requested("job", key)
    plans.publish(published("job", PlannedReads("p", order.keys, 4020, 1.0)), 20.0)
    [plan] = plans.uses.plans
    assert 1005 <= plan.position <= 1020
    assert plan.is_trusted


def test_an_order_that_is_not_read_is_not_trusted_and_may_be_again() -> None:
    keys = list(range(10_000))
    order = random.Random(2).sample(keys, len(keys))
    specification = published("job", reads(keys))
    plans = follow(specification)
    for key in order[:400]:
        plans.uses.requested("job", key)
    assert not plans.is_trusted(specification)
    assert np.isinf(plans.uses.next_uses(keys)).all()
    for start in range(0, 400, 50):
        plans.publish(published("job", reads(keys, start)), 0.0)
        for key in keys[start : start + 50]:
            plans.uses.requested("job", key)
    assert plans.is_trusted(specification)


def test_requests_of_segments_that_a_plan_lacks_count_against_it() -> None:
    specification = published("job", reads(KEYS))
    plans = follow(specification)
    for key in range(1, 100):
        plans.uses.requested("job", key)
        plans.uses.requested("another", KEYS[0])
    assert not plans.is_trusted(specification)


def test_readers_of_a_job_have_plans_of_their_own() -> None:
    specifications = [
        published("job", reads(KEYS[:50]), "a"),
        published("job", reads(KEYS[50:]), "b"),
    ]
    plans = follow(*specifications)
    for first, second in zip(KEYS[:50], KEYS[50:], strict=True):
        plans.uses.requested("job", first)
        plans.uses.requested("job", second)
    assert all(map(plans.is_trusted, specifications))


def test_the_reader_that_is_nearest_to_a_segment_has_requested_it() -> None:
    plans = follow(
        published("a", reads(KEYS)),
        published("job", reads(KEYS, 10), "far"),
        published("job", reads(KEYS[::-1], 40), "near"),
        published("job", reads(KEYS, 90), "farther"),
        published("z", reads(KEYS)),
    )
    plans.uses.requested("job", KEYS[55])
    assert [plan.position for plan in plans.uses.plans] == [0, 10, 45, 90, 0]


def test_plans_without_a_lease_and_withdrawn_ones_are_forgotten() -> None:
    one, two = published("one", reads(KEYS)), published("two", reads(KEYS))
    plans = follow(one, two)
    plans.merge([one])
    assert len(plans.uses) == 100
    plans.publish(published("one", None), 1.0)
    plans.merge([one])
    assert len(plans.uses) == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_makes_no_sense_is_an_epoch_in_an_hour(rate: float) -> None:
    plan = FollowedPlan("job", reads(KEYS, 0, rate), 0.0)
    assert PlannedUses([plan]).next_use(KEYS[50]) == pytest.approx(1800)


@pytest.mark.parametrize(("position", "kept"), [(-5, 0), (1000, 100)])
def test_a_position_outside_of_the_plan(position: int, kept: int) -> None:
    assert FollowedPlan("job", reads(KEYS, position), 0.0).position == kept


def test_uses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_uses, "MAX_USES", 100)
    one, two = published("one", reads(KEYS)), published("two", reads(KEYS))
    plans = follow(one, two)
    assert plans.uses.is_cut
    assert len(plans.uses) == 100
    assert np.isinf(plans.uses.next_uses(KEYS[50:])).all()
    for key in KEYS:
        plans.uses.requested("one", key)
    assert plans.is_trusted(one), "it is read as it says"


def test_no_plans() -> None:
    assert np.isinf(PlannedUses().next_uses([1, 2])).all()
    assert PlannedUses().next_use(1) == math.inf
    assert len(PlannedUses([FollowedPlan("job", reads([]), 0.0)]).next_uses([])) == 0


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_all_keys_are_found_by_their_prefixes(count: int) -> None:
    ends = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    order = (ends + random.Random(count).sample(range(1 << 32), 1000))[:count]
    uses = PlannedUses([FollowedPlan("job", reads(order), 0.0)])
    for place, key in enumerate(order):
        assert uses.next_use(1 << 40 | key) == place
    for key in set(ends) - set(order):
        assert uses.next_use(key) == math.inf

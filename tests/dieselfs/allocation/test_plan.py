"""Plans and explanations: equation 4 after the first epochs, and what more would bring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dieselfs.allocation.explanation import GIB, MIB, explain
from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.plan import make_plan
from dieselfs.allocation.policies.naming import ORDERS, SYSTEMS, named_policy, policy_of
from dieselfs.allocation.shared_lru import lru_shares
from dieselfs.cli.rendering.allocation_plan import sentences
from tests.dieselfs.allocation.made_jobs import GB, MB, TABLE_6_TOTAL, job, table_6_jobs

TABLE_6 = [state.job for state in table_6_jobs()]


def test_table_6_by_silod() -> None:
    plan = make_plan(TABLE_6, named_policy("greedy"), TABLE_6_TOTAL)
    found = {planned.job.name: planned for planned in plan.jobs}
    assert all(each.rate_bytes_per_s == each.job.speed_bytes_per_s for each in found.values())
    assert found["resnet-2"].cache_bytes == 700 * GB
    assert found["resnet-2"].io_bytes_per_s == pytest.approx(52.6 * MB, rel=1e-3)
    assert found["resnet-2"].first_rate_bytes_per_s == pytest.approx(48 * MB)
    reasons = {each.planned.job.name: each for each in explain(plan)}
    assert {each.limited_by for each in reasons.values()} == {"speed"}
    more = reasons["resnet-2"]
    assert more.io_spared_by_a_gib == pytest.approx(GIB / (1300 * GB) * 114 * MB)
    assert more.effective_after_s == pytest.approx(1300 * GB / (48 * MB))
    assert [holder.dataset for holder in more.holders] == ["resnet-1"]
    assert reasons["resnet-1"].holders == ()
    assert reasons["bert"].reads < 1
    assert reasons["bert"].effective_after_s is None


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("order", ORDERS)
def test_rates_are_those_of_equation_4(order: str, system: str) -> None:
    plan = make_plan(TABLE_6, policy_of(order, system), Resources(8, 2000 * GB, 100 * MB))
    for planned in plan.jobs:
        hits = planned.state.hit_share
        if system != "alluxio":
            assert hits == pytest.approx(planned.cache_bytes / planned.job.dataset_bytes)
        speed = planned.job.speed_bytes_per_s * planned.gpus / planned.job.gpus
        loading = planned.io_bytes_per_s / (1 - hits) if hits < 1 else speed
        assert planned.rate_bytes_per_s == pytest.approx(min(speed, loading))
    misses = [each.rate_bytes_per_s * (1 - each.state.hit_share) for each in plan.jobs]
    assert sum(misses) <= 100 * MB * (1 + 1e-6)


def test_jobs_that_share_a_dataset_and_tell_their_orders() -> None:
    total = Resources(2, 50 * GB, 20 * MB)
    told = [replace(job(name, 100, 100, dataset="d"), order="told") for name in "ab"]
    plain = make_plan([replace(each, order="random") for each in told], named_policy("fifo"), total)
    for name in ("greedy", "fifo", "sjf", "max-min"):
        plan = make_plan(told, named_policy(name), total)
        assert [each.cache_bytes for each in plan.jobs] == [50 * GB, 50 * GB]
        for each, uniform in zip(plan.jobs, plain.jobs, strict=True):
            assert each.state.hit_share == pytest.approx(0.72, abs=0.01), "Belady, not 0.5"
            assert each.rate_bytes_per_s == pytest.approx(10 * MB / (1 - each.state.hit_share))
            assert uniform.rate_bytes_per_s == pytest.approx(20 * MB)
    reason, as_uniform = explain(plan)[0], explain(plain)[0]
    assert 0.5 < reason.efficiency / as_uniform.efficiency < 0.9, "the first bytes spare most"
    assert reason.rate_by_a_gib > as_uniform.rate_by_a_gib
    assert "Without that it would answer 50%" in " ".join(sentences(reason))
    assert "Without that" not in " ".join(sentences(as_uniform))


def test_what_more_of_a_resource_brings_a_job_that_waits_for_data() -> None:
    plan = make_plan(
        [job("a", 100, 100), job("b", 100, 90)], named_policy("greedy"), Resources(2, 120 * GB, 6 * MB)
    )  # fmt: skip
    first, second = explain(plan)
    assert (first.limited_by, second.limited_by) == ("speed", "io")
    assert second.planned.rate_bytes_per_s == pytest.approx(6 * MB / 0.8)
    assert second.rate_by_a_gib == pytest.approx(6 * MB / (0.8 - GIB / (100 * GB)) - 7.5 * MB)
    assert second.rate_by_a_mib_per_s == pytest.approx(MIB / 0.8)
    assert (second.most_io_bytes_per_s, second.jobs_with_most_io) == (6 * MB, 1)


def test_jobs_that_wait_come_last_in_their_order() -> None:
    jobs = [job("c", 100, 50), job("b", 100, 60), job("a", 100, 70)]
    plan = make_plan(jobs, named_policy("sjf"), Resources(1, 0, 1e9))
    assert [planned.job.name for planned in plan.jobs] == ["a", "b", "c"]
    assert [each.limited_by for each in explain(plan)] == ["speed", "gpus", "gpus"]
    assert plan.jobs[1].rate_bytes_per_s == 0


def test_a_job_that_has_gpus_by_turns() -> None:
    plan = make_plan([job("a"), job("b")], named_policy("max-min"), Resources(1, 0, 1e9))
    assert [each.limited_by for each in explain(plan)] == ["gpus", "gpus"]
    assert plan.jobs[0].rate_bytes_per_s == pytest.approx(50 * MB)


def test_an_lru_pool_holds_what_was_read_last() -> None:
    one = [JobState(job("a", 100, 100), 1e12)]
    for pool in (0, 30, 60, 90, 100, 200):
        (cached,), (hits,) = lru_shares(one, [1.0], pool * GB)
        assert cached == pytest.approx(min(1.0, pool / 100), abs=1e-6)
        assert hits <= cached + 1e-9
    pair = [*one, JobState(job("b", 100, 100), 1e12)]
    (fast, slow), _ = lru_shares(pair, [2.0, 1.0], 90 * GB)
    assert fast + slow == pytest.approx(0.9)
    assert fast > 1.5 * slow


def test_irregular_jobs_hit_in_their_pool() -> None:
    jobs = [job("a", 100, 100), job("odd", 100, 100, regular=False)]
    plan = make_plan(jobs, named_policy("fifo"), Resources(2, 190 * GB, 20 * MB))
    odd = plan.jobs[1]
    assert odd.cache_bytes == pytest.approx(95 * GB, rel=1e-3)
    assert 0.5 < odd.state.hit_share < 0.95

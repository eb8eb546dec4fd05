"""Figure 16: with draws from a growing part, LRU and uniform caching are equal."""

from __future__ import annotations

import pytest

from dieselfs.allocation.simulation.curriculum import Curriculum, curriculum_s
from dieselfs.allocation.simulation.known_orders import Rule

IO = 50e6
WITHOUT_SEED: tuple[Rule, ...] = ("uniform", "lru")
PLAN_BESIDE_UNIFORM: tuple[Rule, ...] = ("uniform", "plan")


@pytest.mark.parametrize("step", [50_000, 75_000])
def test_lru_is_as_good_as_uniform_caching(step: int) -> None:
    job = Curriculum(step)
    cache = job.dataset_bytes / 2
    uniform, lru = (curriculum_s(job, cache, IO, rule=rule) for rule in WITHOUT_SEED)
    assert lru == pytest.approx(uniform, rel=0.02)
    without = curriculum_s(job, 0, IO, rule="uniform")
    assert without > 1.5 * uniform


@pytest.mark.parametrize("step", [50_000, 75_000])
def test_a_cache_that_is_told_the_seed_hits_more(step: int) -> None:
    job = Curriculum(step)
    cache = job.dataset_bytes / 4
    uniform, plan = (curriculum_s(job, cache, IO, rule=rule) for rule in PLAN_BESIDE_UNIFORM)
    assert plan < 0.95 * uniform


def test_the_part_grows_up_to_the_whole_dataset() -> None:
    """Equation 10, with the 1 that its minimum lacks in print."""
    job = Curriculum(50_000)
    assert [job.share(i * 50_000 - 1) for i in (1, 2, 3, 5)] == pytest.approx(
        [0.04, 0.08, 0.16, 0.64]
    )
    assert job.share(399_999) == 1


def test_without_a_bottleneck_the_gpu_decides() -> None:
    job = Curriculum(50_000)
    ideal = job.iterations * job.batch_bytes / job.speed_bytes_per_s
    assert curriculum_s(job, 0, 100e9, rule="lru") == pytest.approx(ideal, rel=1e-3)

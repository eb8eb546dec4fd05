"""Figure 16: with draws from a growing part, LRU and uniform caching are equal."""

from __future__ import annotations

import pytest

from dieselfs.allocation.simulation.curriculum import Curriculum, curriculum_s

IO = 50e6


@pytest.mark.parametrize("step", [50_000, 75_000])
def test_lru_is_as_good_as_uniform_caching(step: int) -> None:
    job = Curriculum(step)
    cache = job.dataset_bytes / 2
    uniform, lru = (curriculum_s(job, cache, IO, is_lru=is_lru) for is_lru in (False, True))
    assert lru == pytest.approx(uniform, rel=0.02)
    without = curriculum_s(job, 0, IO, is_lru=False)
    assert without > 1.5 * uniform


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
    assert curriculum_s(job, 0, 100e9, is_lru=True) == pytest.approx(ideal, rel=1e-3)

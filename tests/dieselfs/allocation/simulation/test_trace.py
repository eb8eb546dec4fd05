"""The synthetic trace has the shares that the issue of its form quotes from the paper."""

from __future__ import annotations

from collections import Counter

import pytest

from dieselfs.allocation.simulation.trace import synthetic_trace, with_shared_datasets

JOBS = synthetic_trace(8000, 400, 1.0)


def test_400_busy_gpus_read_200_gigabits_a_second() -> None:
    """Figure 2: what jobs read without waiting, averaged by the GPU time that they take."""
    gpu_s = sum(job.gpus * job.total_bytes / job.speed_bytes_per_s for job in JOBS)
    rate = 400 * sum(job.total_bytes for job in JOBS) / gpu_s
    assert rate * 8 / 1e9 == pytest.approx(200, rel=0.05)


def test_shares_of_gpus_and_durations() -> None:
    gpus = Counter(job.gpus for job in JOBS)
    assert [gpus[n] / 8000 for n in (1, 2, 4, 8)] == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.02)
    minutes = [job.total_bytes / job.speed_bytes_per_s / 60 for job in JOBS]
    assert min(minutes) >= 31
    assert max(minutes) <= 10_001
    assert sum(m > 1000 for m in minutes) / 8000 == pytest.approx(0.2, abs=0.02)


def test_the_load_is_the_gpu_time_that_comes_over_what_there_is() -> None:
    """8,000 jobs keep 400 GPUs busy for about four weeks."""
    gpu_s = sum(job.gpus * job.total_bytes / job.speed_bytes_per_s for job in JOBS)
    assert gpu_s / 400 / JOBS[-1].submitted_s == pytest.approx(1, rel=0.06)
    assert gpu_s / 400 / 86400 == pytest.approx(27, abs=2)
    assert synthetic_trace(100, 400, 4.0)[-1].submitted_s * 4 == pytest.approx(
        synthetic_trace(100, 400, 1.0)[-1].submitted_s
    )


def test_datasets_differ_unless_they_are_shared() -> None:
    assert len({job.dataset for job in JOBS}) == 8000
    assert len({job.dataset for job in with_shared_datasets(JOBS, 1.0)}) == 5
    half = with_shared_datasets(JOBS, 0.5)
    assert len({job.dataset for job in half}) == pytest.approx(4000, rel=0.05)

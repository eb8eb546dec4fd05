"""The two figures of a kept rate: what bytes left when, against what was allowed."""

import pytest

from benchmarks.bench_budget import CHUNK_BYTES, burst_s, rate_error

RATE = CHUNK_BYTES / 2.0  # a chunk every two seconds


def left(*times: float) -> list[tuple[float, int]]:
    return [(at, CHUNK_BYTES) for at in times]


def test_chunks_in_time_are_no_burst() -> None:
    assert rate_error(left(5, 7, 9, 11), RATE) == pytest.approx(0)
    assert burst_s(left(5, 7, 9, 11), RATE) == pytest.approx(0)
    assert burst_s(left(5, 9, 11), RATE) == pytest.approx(0)


def test_chunks_too_early_are() -> None:
    assert rate_error(left(5, 6, 7), RATE) == pytest.approx(1)
    assert burst_s(left(5, 7, 8.75), RATE) == pytest.approx(0.25)
    assert burst_s(left(5, 12, 12, 14), RATE) == pytest.approx(2)

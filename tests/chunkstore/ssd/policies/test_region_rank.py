"""Ranks of regions, and which open region a chunk is written to."""

from __future__ import annotations

import numpy as np
import pytest

from chunkstore.ssd.policies.region_rank import LATE, SOON, fill_class, region_ranks

INF = float("inf")


def ranks(*regions: list[float], now: float = 0.0) -> list[float]:
    uses = np.array([use for region in regions for use in region], np.float64)
    numbers = np.repeat(np.arange(len(regions)), [len(region) for region in regions])
    found: list[float] = region_ranks(uses, numbers, len(regions), now).tolist()
    return found


def test_a_region_of_equal_chunks_has_their_next_use_as_its_rank() -> None:
    assert ranks([100, 100], [400], now=50) == pytest.approx([100, 400])


def test_chunks_that_no_job_needs_make_a_region_worth_less() -> None:
    alive, half, dead = ranks([100, 100], [100, INF], [INF, INF])
    assert alive < half < dead == INF


def test_a_region_without_chunks_leaves_first() -> None:
    assert ranks([100], []) == [100, INF]


def test_one_chunk_that_is_due_keeps_its_region_longer_than_many_distant_ones() -> None:
    due, distant = ranks([1, 1000, 1000, 1000], [500, 500, 500, 500])
    assert due < distant


def test_an_overdue_use_is_one_within_a_refresh() -> None:
    assert ranks([-1000], [5], now=0) == [10, 10]


@pytest.mark.parametrize(
    ("next_use", "evicts_next", "found"),
    [
        (100, None, SOON),
        (INF, None, LATE),
        (1e9, INF, SOON),
        (INF, INF, LATE),
        (40, 100, SOON),
        (60, 100, LATE),
        (-5, 100, SOON),
        (60, -5, LATE),
    ],
)
def test_chunks_of_soon_and_late_uses_fill_other_regions(
    next_use: float, evicts_next: float | None, found: int
) -> None:
    assert fill_class(next_use, 0, evicts_next) == found

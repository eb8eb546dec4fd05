"""Ranks of regions, and which open region a chunk is written to."""

from __future__ import annotations

import numpy as np
import pytest

from chunkstore.ssd.policies.region_rank import NOT_NEEDED, SOON, fill_class, region_ranks

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
    assert ranks([-1000], [5], now=0) == pytest.approx([10, 10])


def test_chunks_that_are_used_at_about_the_same_time_share_a_region() -> None:
    found = [fill_class(use, 0, 1600, regions=1024) for use in range(0, 2048, 16)]
    assert found == [slot for slot in range(16) for _ in range(8)]  # 1600 s / 16, rounded up


def test_slots_stay_the_same_as_time_goes_on() -> None:
    found = {fill_class(3000, now, now + 1600, regions=1024) for now in range(1000, 3000, 50)}
    assert len(found) == 1


@pytest.mark.parametrize(("regions", "slots"), [(4, 1), (64, 4), (10_000, 16)])
def test_a_small_tier_has_few_open_regions(regions: int, slots: int) -> None:
    found = {fill_class(use, 0, 1600, regions) for use in range(0, 2048, 16)}
    assert len(found) == slots


@pytest.mark.parametrize("evicts_next", [None, INF, -5.0])
def test_chunks_that_no_job_needs_have_a_region_of_their_own(evicts_next: float | None) -> None:
    assert fill_class(INF, 0, evicts_next, 100) == NOT_NEEDED
    assert fill_class(60, 0, evicts_next, 100) >= SOON
    assert fill_class(-60, 0, evicts_next, 100) >= SOON  # overdue

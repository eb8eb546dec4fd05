"""Whether a client's reads go to the cache at all."""

from __future__ import annotations

import pytest

from chunkstore.ssd.policies.eligibility import TIB, Eligibility

HDD = Eligibility(store_bytes_per_s_per_tib=10e6)


def test_all_datasets_are_eligible_unless_a_rule_says_otherwise() -> None:
    assert Eligibility().allows("imagenet", TIB, 0.0)


@pytest.mark.parametrize(
    ("dataset", "allowed"), [("ads/a", True), ("ads/old", False), ("Ads/a", False), ("logs", False)]
)
def test_datasets_are_chosen_by_name(dataset: str, allowed: bool) -> None:
    rule = Eligibility(included=("ads/*", "video"), excluded=("*/old",))
    assert rule.allows(dataset) == allowed


@pytest.mark.parametrize(("demand", "allowed"), [(0.0, False), (50e6, False), (50.1e6, True)])
def test_a_dataset_that_its_own_disks_serve_needs_no_cache(demand: float, allowed: bool) -> None:
    assert HDD.allows("d", 5 * TIB, demand) == allowed


@pytest.mark.parametrize(("stored", "demand"), [(None, 1.0), (TIB, None), (0, 0.0)])
def test_what_is_not_known_counts_for_the_dataset(stored: int | None, demand: float | None) -> None:
    assert HDD.allows("d", stored, demand)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_makes_no_sense_is_an_error(rate: float) -> None:
    with pytest.raises(ValueError, match="must not be < 0"):
        Eligibility(store_bytes_per_s_per_tib=rate)

"""Whether a client's reads go to the cache at all."""

from __future__ import annotations

import pytest

from chunkstore.ssd.policies.eligibility import Eligibility


def test_all_datasets_are_eligible_unless_a_rule_says_otherwise() -> None:
    assert not Eligibility().refusal("imagenet")


@pytest.mark.parametrize(
    ("patterns", "dataset", "said"),
    [
        ("imagenet*,!*-val", "imagenet-21k", ""),
        (
            "imagenet*,!*-val",
            "imagenet-val",
            "dataset imagenet-val is left out by the pattern !*-val",
        ),
        ("!*-val, imagenet*", "imagenet-val", "!*-val"),
        ("imagenet*+coco", "coco", ""),
        ("imagenet*,coco", "laion", "dataset laion matches no pattern of imagenet*, coco"),
        ("imagenet?", "Imagenet1", "matches no pattern of"),
        ("!*-val", "laion", ""),
        ("!*", "laion", "!*"),
        ("*", "laion", ""),
    ],
)
def test_datasets_are_chosen_by_name(patterns: str, dataset: str, said: str) -> None:
    found = Eligibility.parse(patterns).refusal(dataset)
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize("patterns", ["", " ", "a,,b", "a,", "!", "a,! "])
def test_an_empty_pattern_is_an_error(patterns: str) -> None:
    with pytest.raises(ValueError, match="an empty pattern in"):
        Eligibility.parse(patterns)


@pytest.mark.parametrize("pattern", ["a/b", "dl://a", "[ab", "!!a", "a b", "-val", ".x", "ä"])
def test_a_pattern_that_no_name_can_match_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="no dataset's name can match"):
        Eligibility.parse(f"*,{pattern}")


@pytest.mark.parametrize(
    ("patterns", "is_none"),
    [("imagnet*", True), ("!*-test", True), ("imagnet*,!*-val", False), ("imagenet", False)],
)
def test_a_list_that_matches_no_dataset_is_noticed(patterns: str, is_none: bool) -> None:
    assert Eligibility.parse(patterns).matches_none(["imagenet", "coco-val"]) == is_none

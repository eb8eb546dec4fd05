"""A short run of every fuzzer; `make fuzz` runs them for as long as wanted."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz import attempt, fuzz
from tests.fuzz.targets import Target, all_targets

TARGETS = all_targets()
INPUTS = 4000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_sound_inputs_are_taken(target: Target) -> None:
    for seed in target.seeds:
        target.run(seed)
        assert attempt(target, seed, measure=True) is None
        if target.reseal is not None:
            assert target.reseal(seed) == seed  # else what is fuzzed never gets past the checksums


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_inputs_are_refused_or_harmless(target: Target) -> None:
    assert [finding.what for finding in fuzz(target, int(INPUTS * target.rate), seed=1)] == []

"""The simulation finds what is broken. These few are found at once; `make simulate-proof` has them
all."""

import pytest

from tests.simulation.proof import BREAKS, Break, found_by

AT_ONCE = {
    "a breaker never closes": "not healed",
    "a master has no single flight": "refetched",
    "who answers is not noticed": "not healed",
    "a connection for each question": "left open",
    "a server does not end": "left open",
    "a loaded block is not answered": "not in time|in vain",
}
SEEDS = 20


@pytest.mark.parametrize("broken", [each for each in BREAKS if each.what in AT_ONCE], ids=str)
def test_what_is_broken_is_found(broken: Break) -> None:
    failure = found_by(broken, SEEDS)
    assert failure is not None
    assert any(reason in failure.what for reason in AT_ONCE[broken.what].split("|")), failure.what


def test_each_is_broken_in_a_place_that_exists() -> None:
    assert all(hasattr(broken.target, broken.name) for broken in BREAKS)
    assert {broken.what for broken in BREAKS} >= AT_ONCE.keys()

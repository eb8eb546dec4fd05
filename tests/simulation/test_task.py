"""A share of the seeds; `make simulate SEEDS=5000` runs more. And that a seed is a run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import Failure, run_seed
from tests.simulation.scenario import scenario_of

ROOT = Path(__file__).parent.parent.parent
SEEDS = 60
BATCH = 10
REPLAYED = (2, 3, 5, 19, 41)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_tasks_hold_what_they_promise(first: int) -> None:
    outcomes = [run_seed(seed) for seed in range(first, first + BATCH)]
    failures = [str(outcome) for outcome in outcomes if isinstance(outcome, Failure)]
    assert not failures, "\n\n".join(failures)


def traces() -> str:
    """A digest of all that happens in some seeds."""
    digest = hashlib.sha256()
    for seed in REPLAYED:
        outcome = run_seed(seed, lambda line: digest.update(line.encode() + b"\n"))
        digest.update(repr(outcome).encode())
    return digest.hexdigest()


def test_a_seed_is_the_same_run_in_any_process() -> None:
    kinds = {scenario_of(seed).kind for seed in REPLAYED}
    assert kinds == {"calm", "faults", "kill"}
    command = [
        sys.executable,
        "-c",
        "from tests.simulation.test_task import traces; print(traces())",
    ]
    others = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    found = {other.communicate(timeout=100)[0].strip() for other in others}
    assert found == {traces()}

"""Lightning with two ranks, over a real mount."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.dieselfs.integrations.framework_ranks import check_epochs, check_plan, run
from tests.mount.mounting import needs_fuse

pytestmark = needs_fuse


@pytest.fixture(scope="module")
def training() -> ModuleType:
    """The module that imports Lightning. Collection would do so in every worker."""
    return importlib.import_module("tests.dieselfs.integrations.training_with_lightning")


def test_two_epochs(training: ModuleType, pets_mount: Path, tmp_path: Path) -> None:
    ranks = run(training.train, pets_mount, tmp_path / "run", workers=1)
    check_epochs(ranks, 2)
    check_plan(pets_mount)


@pytest.mark.parametrize(
    ("workers", "every", "kills"),
    # An epoch has 16 batches. Lightning 2.6 miscounts an epoch that it resumes from a checkpoint of
    # the last batch: it trains it again from the start if it is interrupted again.
    [(0, 5, (8, 17, 27)), (2, 8, (9, 18)), (2, "epoch", (18, 30))],
)
def test_interrupted(
    training: ModuleType,
    pets_mount: Path,
    tmp_path: Path,
    workers: int,
    every: int,
    kills: tuple[int, ...],
) -> None:
    whole = run(training.train, pets_mount, tmp_path / "whole", every=1000)
    check_epochs(whole, 2)
    for kill_at in (*kills, None):
        found = run(
            training.train, pets_mount, tmp_path / "run", kill_at, workers=workers, every=every
        )
    assert found == whole


def test_a_state_of_another_division_is_refused(
    training: ModuleType, pets_mount: Path, tmp_path: Path
) -> None:
    run(training.train, pets_mount, tmp_path / "run", 8)
    run(training.train_otherwise, pets_mount, tmp_path / "run")

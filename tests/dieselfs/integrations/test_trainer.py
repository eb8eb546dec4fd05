"""The Trainer of transformers with two ranks, over a real mount."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.dieselfs.integrations.framework_ranks import check_epochs, check_plan, run
from tests.mount.mounting import needs_fuse

pytestmark = needs_fuse


@pytest.fixture(scope="module")
def training() -> ModuleType:
    """The module that imports transformers. Collection would do so in every worker."""
    return importlib.import_module("tests.dieselfs.integrations.training_with_transformers")


def test_interrupted(training: ModuleType, pets_mount: Path, tmp_path: Path) -> None:
    whole = run(training.train, pets_mount, tmp_path / "whole", every=1000)
    check_epochs(whole, 2)
    check_plan(pets_mount)
    for kill_at in (8, 22, 27, None):
        found = run(training.train, pets_mount, tmp_path / "run", kill_at, workers=2)
    assert found == whole


def test_a_plain_loader_is_refused(training: ModuleType, pets_mount: Path, tmp_path: Path) -> None:
    run(training.train_with_a_plain_loader, pets_mount, tmp_path / "run")

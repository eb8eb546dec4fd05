"""A folder for tasks, which nobody leads any more when the test has ended."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.cache.node.task_folder import TaskFolder, sweep
from tests.dieselfs.cache.logged_source import LoggedSource
from tests.dieselfs.cache.patience import be_patient, be_patient_members
from tests.eventually import eventually


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dieselfs-test-", dir="/dev/shm") as folder:
        yield Path(folder)

        def is_empty() -> bool:
            sweep(Path(folder))
            return not os.listdir(folder)

        eventually(is_empty, "a folder that nobody leads")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch.setattr)


@pytest.fixture
def patient_members(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient_members(monkeypatch.setattr)


@pytest.fixture
def folder(root: Path) -> TaskFolder:
    return TaskFolder.at("task", root)


@pytest.fixture
def source(tmp_path: Path) -> LoggedSource:
    return LoggedSource(tmp_path / "asked")

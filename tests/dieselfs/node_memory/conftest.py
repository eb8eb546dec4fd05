"""A folder for tasks, which nobody leads any more when the test has ended."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.node_memory.task_folder import TaskFolder, sweep
from tests.dieselfs.node_memory.logged_source import LoggedSource
from tests.dieselfs.node_memory.processes import wait_for


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dieselfs-test-", dir="/dev/shm") as folder:
        yield Path(folder)

        def is_empty() -> bool:
            sweep(Path(folder))
            return not os.listdir(folder)

        wait_for(is_empty, "a folder that nobody leads")


@pytest.fixture
def folder(root: Path) -> TaskFolder:
    return TaskFolder.at("task", root)


@pytest.fixture
def source(tmp_path: Path) -> LoggedSource:
    return LoggedSource(tmp_path / "asked")

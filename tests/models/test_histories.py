"""Store and index together against a dictionary: DIESELFS_HISTORIES=10000 for many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunkstore.group_commit import GroupCommit
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from tests.faults.repeated_put import folder_in_memory
from tests.models.histories import World

HISTORIES = int(os.environ.get("DIESELFS_HISTORIES", "200"))
FIRST = int(os.environ.get("DIESELFS_FIRST_HISTORY", "0"))


@pytest.fixture(autouse=True)
def commits_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after a second: a history is a function of its seed."""
    monkeypatch.setitem(GroupCommit.__init__.__kwdefaults__, "group_delay_s", 1e6)


@pytest.mark.timeout(0 if HISTORIES > 200 else 300)
def test_histories(tmp_path: Path) -> None:
    for seed in range(FIRST, FIRST + HISTORIES):
        try:
            World(seed, MemoryStore(), tmp_path / str(seed)).run()
        except Exception as error:
            raise AssertionError(f"history {seed}") from error


def test_histories_with_lmdb(tmp_path: Path) -> None:
    with folder_in_memory() as folder:
        for seed in range(FIRST, FIRST + HISTORIES // 20):
            index = LmdbFileStore(folder / str(seed))
            try:
                World(seed, index, tmp_path / str(seed)).run()
            except Exception as error:
                raise AssertionError(f"history {seed}") from error
            finally:
                index.close()

"""The allocation directory in a folder: its contract, and what it has of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dieselfs.allocation.directory import decisions_file
from dieselfs.allocation.directory import folder as folder_module
from dieselfs.allocation.directory.decisions_file import DECISIONS, locked
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.errors import RegistryUnavailable
from tests.contracts.allocation_directory import (
    ID,
    LEASE_S,
    OTHER,
    READER,
    AllocationDirectoryContract,
    Place,
    made_lease,
    readers_of,
)
from tests.eventually import eventually


class FolderPlace(Place):
    module = folder_module

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0

    def open(self) -> FolderDirectory:
        return FolderDirectory(self.folder, monotonic=lambda: self.now)

    def put(self, kind: str, key: str, content: bytes) -> None:
        path = self.folder / DECISIONS
        with locked(self.folder):
            found = json.loads(path.read_text()) if path.exists() else {"v": 1}
            record = json.loads(content)
            found.setdefault(kind, {})[key] = record
            if isinstance(record, dict):
                found["stamp"] = max(found.get("stamp", 0), record.get("stamp", 0))
            path.write_text(json.dumps(found))

    def lead_until_it_ends(self, directory: AllocationDirectory, id: str) -> None:
        assert directory.lead(id, 5.0) == id
        self.now += 5.0


class TestFolderDirectory(AllocationDirectoryContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        return FolderPlace(tmp_path / "allocations")


def test_the_folder_is_of_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "allocations"
    directory = FolderDirectory(folder)
    assert directory.decisions().ios == directory.leases() == []
    assert not folder.exists()
    directory.allocate_remote_io("resnet", 1.0, origin="hand")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    for change in (
        lambda: directory.allocate_remote_io("resnet", 2.0, origin="hand"),
        lambda: directory.beat(made_lease(), LEASE_S),
        lambda: directory.lead("a", LEASE_S),
    ):
        with pytest.raises(RegistryUnavailable, match="alone"):
            change()
    directory.resign("a")


def test_a_damaged_file_is_replaced_by_the_next_decision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = FolderDirectory(tmp_path)
    for content in (b"", b'{"v":2}', b"[" * 100_000):
        (tmp_path / DECISIONS).write_bytes(content)
        caplog.clear()
        for _ in range(2):
            assert directory.decisions().ios == []
            assert directory.beat(made_lease(), LEASE_S).io is None
        assert caplog.text.count("is damaged or of another release") == 1
    directory.allocate_remote_io("resnet", 2.0, origin="hand")
    assert directory.decisions().io_of("resnet") is not None


def test_a_damaged_leader_leads_no_longer(tmp_path: Path) -> None:
    directory = FolderDirectory(tmp_path)
    (tmp_path / "leader.json").write_bytes(b"{")
    assert directory.lead("a", LEASE_S) == "a"


def test_a_clock_that_was_put_back_and_one_from_the_future(tmp_path: Path) -> None:
    now = 1_000_000.0
    directory = FolderDirectory(tmp_path, clock=lambda: now)

    def stamp() -> int:
        directory.allocate_remote_io("resnet", 1.0, origin="hand")
        return directory.decisions().ios[0].stamp

    first = stamp()
    now -= 300.0
    assert stamp() == first + 1
    now -= 10_000.0  # the former stamp is now from the future, and no one's
    assert directory.decisions().ios == []
    assert stamp() == int(now * 1e6)


def test_a_lock_that_is_held_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_file, "LOCK_S", 0.0)
    directory = FolderDirectory(tmp_path)
    with locked(tmp_path), pytest.raises(RegistryUnavailable, match="locked"):
        directory.allocate_remote_io("resnet", 1.0, origin="hand")
    directory.allocate_remote_io("resnet", 1.0, origin="hand")


def test_a_change_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions_file, "MAX_DECISIONS", 1)
    directory = FolderDirectory(tmp_path)
    directory.allocate_cache_size("imagenet", ID, 1, origin="hand")
    with pytest.raises(RegistryUnavailable, match="full"):
        directory.allocate_cache_size("imagenet", ID, 1, origin="allocator")
    directory.allocate_cache_size("imagenet", ID, 2, origin="hand")
    assert [each.size_bytes for each in directory.decisions().caches] == [2]


def test_a_beat_reads_the_decisions_only_if_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = FolderDirectory(tmp_path)
    directory.allocate_remote_io("resnet", 1.0, origin="hand")
    directory.beat(made_lease(), LEASE_S)
    monkeypatch.setattr(Path, "read_bytes", None)
    found = directory.beat(made_lease(), LEASE_S).io
    assert found is not None
    assert found.bytes_per_s == 1.0


BEATING = """
import sys
from pathlib import Path
from dieselfs.allocation.directory.folder import FolderDirectory
from tests.contracts.allocation_directory import LEASE_S, made_lease
directory = FolderDirectory(Path(sys.argv[1]))
directory.beat(made_lease(), LEASE_S)
directory.allocate_remote_io("resnet", 5.0, origin="hand")
print("there", flush=True)
sys.stdin.read()
"""


def test_the_lease_of_a_process_that_is_killed_goes_and_its_decision_stays(
    tmp_path: Path,
) -> None:
    directory = FolderDirectory(tmp_path)
    directory.beat(made_lease(OTHER), LEASE_S)
    command = [sys.executable, "-c", BEATING, os.fspath(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        assert readers_of(directory.leases()) == [READER, OTHER]
        other.send_signal(signal.SIGKILL)
    eventually(lambda: readers_of(directory.leases()) == [OTHER], "the lease ends")
    assert directory.decisions().io_of("resnet") is not None
    assert abs(directory.decisions().ios[0].stamp / 1e6 - time.time()) < 3600

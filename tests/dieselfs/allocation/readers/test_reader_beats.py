"""How often a reader asks the directory: a cluster that allocates nothing is hardly asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers import reader_allocation
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.reader_allocation import (
    BEAT_S,
    UNNAMED_BEAT_S,
    ReaderAllocation,
)
from dieselfs.cache.jobs.beats import Beats


@pytest.mark.parametrize(("job", "interval_s"), [("", UNNAMED_BEAT_S), ("resnet", BEAT_S)])
def test_a_reader_without_a_job_asks_seldom_while_nothing_is_allocated(
    tmp_path: Path, job: str, interval_s: float
) -> None:
    directory = FolderDirectory(tmp_path / "directory")
    reader = ReaderAllocation(AllocationSettings(job, "lmdb:///x"), DatasetRef("pets", bytes(16)))
    reader.beat(directory)
    assert reader._interval_s() == interval_s
    directory.allocate_remote_io("another", 1e6, origin="hand")
    reader.beat(directory)
    assert reader._interval_s() == BEAT_S
    reader.end(directory)


def test_a_beat_that_is_late_tells_what_was_used_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReaderAllocation, "begin", lambda _: None)  # the beats are those below
    directory, now = FolderDirectory(tmp_path / "directory"), 0.0
    directory.allocate_remote_io("resnet", 1e9, origin="hand")
    settings = AllocationSettings("resnet", "lmdb:///x")
    reader = ReaderAllocation(settings, DatasetRef("pets", bytes(16)), clock=lambda: now)
    reader.beat(directory)
    budget = reader.payer()
    assert budget is not None
    budget.charge(1_000_000)
    now = 1.0
    reader.beat(directory)
    budget.charge(10_000_000)
    now = 101.0
    reader.beat(directory)
    assert reader.statistics().used_bytes_per_s == 10_000_000 / 100
    reader.end(directory)


def test_what_is_used_before_a_late_first_beat_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Beats, "start", lambda _: None)  # the beats are those below
    monkeypatch.setattr(reader_allocation, "_FIRST_S", 0.0)
    directory, now = FolderDirectory(tmp_path / "directory"), 100.0
    settings = AllocationSettings("resnet", "lmdb:///x")
    reader = ReaderAllocation(settings, DatasetRef("pets", bytes(16)), clock=lambda: now)
    budget = reader.payer()
    assert budget is not None
    budget.charge(1_000_000)
    assert reader.statistics().used_bytes_per_s == 0, "it is not measured yet"
    now = 104.0
    reader.beat(directory)
    [lease] = directory.leases()
    assert lease.used_bytes_per_s == 1_000_000 / 4
    reader.end(directory)


def test_what_a_reader_without_a_job_uses_counts_from_its_first_limit(tmp_path: Path) -> None:
    directory, now = FolderDirectory(tmp_path / "directory"), 100.0
    directory.allocate_remote_io("", 1e9, origin="hand")
    settings = AllocationSettings("", "lmdb:///x")
    reader = ReaderAllocation(settings, DatasetRef("pets", bytes(16)), clock=lambda: now)
    reader.beat(directory)
    assert reader._budget is not None
    reader._budget.charge(1_000_000)
    now = 102.0
    reader.beat(directory)
    assert reader.statistics().used_bytes_per_s == 1_000_000 / 2
    reader.end(directory)

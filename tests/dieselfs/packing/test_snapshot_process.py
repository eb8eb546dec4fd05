"""A put publishes the snapshot that a scan of the index gives, whoever builds it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.commit_log import BIRTH_GENERATION, Commit
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.dataset.dataset import open_dataset
from dieselfs.packing import snapshot_process
from dieselfs.packing.pack import pack
from dieselfs.packing.put_request import PackProgress, PackRequest
from dieselfs.packing.snapshot_process import SnapshotProcess
from dieselfs.packing.source_tree import SourceTree
from dieselfs.snapshots import put_snapshots
from dieselfs.snapshots.lifecycle import build
from metadata.kv.lmdb_file import LmdbFileStore

Scans = list[str]


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(snapshot_process, "WORTHWHILE_FILES", 10)
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    """Each scan of the index for a put's snapshot."""
    found: Scans = []

    def counted(*arguments: object) -> Path:
        found.append("scan")
        return build(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(put_snapshots, "build", counted)
    return found


@pytest.fixture
def put(tmp_path: Path) -> Callable[[], int]:
    """Put 60 files, and check the snapshot against one from a scan.

    Return the number of commits of other writers after the dataset's birth. The put itself makes
    more than one if it takes longer than the delay of a group.
    """
    (tmp_path / "source/deep").mkdir(parents=True)
    for number in range(60):
        (tmp_path / "source" / ("deep" if number % 3 else "") / f"{number}").write_bytes(b"x" * 999)

    def packed() -> int:
        progress = PackProgress()
        request = PackRequest(
            [SourceTree(os.fsencode(tmp_path / "source"), b"")],
            jobs=2,
            target_bytes=8192,
            snapshot_folder=tmp_path / "snapshots",
        )
        store = LocalDirectory(tmp_path / "store")
        pack("d", request, lambda: store, lambda: LmdbFileStore(tmp_path / "index"), progress)
        assert progress.snapshot is not None, progress.unpublished
        index = LmdbFileStore(tmp_path / "index")
        expected = build(open_dataset(store, index, "d"), tmp_path / "expected")
        index.close()
        folder = tmp_path / "snapshots"
        assert [path.name for path in folder.glob(f"*{expected.name}")] == [expected.name]
        assert (folder / expected.name).read_bytes() == expected.read_bytes()
        generation = int(progress.snapshot.snapshot_id.partition("-")[0])
        return generation - BIRTH_GENERATION - progress.commits

    return packed


def test_a_new_dataset_needs_no_scan(put: Callable[[], int], scans: Scans, tmp_path: Path) -> None:
    assert put() == 0
    assert scans == []
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_a_later_put_scans(put: Callable[[], int], scans: Scans, tmp_path: Path) -> None:
    put()
    (tmp_path / "source/more").write_bytes(b"more")
    put()
    assert scans == ["scan"]


def test_a_process_that_is_killed_is_replaced_by_a_scan(
    put: Callable[[], int], scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = SnapshotProcess.add

    def add_and_kill(
        self: SnapshotProcess, commit: Commit, heads: list[bytes], found: int, *, is_last: bool
    ) -> None:
        add(self, commit, heads, found, is_last=is_last)
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)

    monkeypatch.setattr(SnapshotProcess, "add", add_and_kill)
    put()
    assert scans == ["scan"]


def test_a_process_that_cannot_be_forked_is_replaced_by_a_scan(
    put: Callable[[], int], scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(SnapshotProcess, "_start", refused)
    put()
    assert scans == ["scan"]


def test_more_files_than_memory_is_meant_for_are_scanned(
    put: Callable[[], int], scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_process, "MOST_FILES", 59)
    put()
    assert scans == ["scan"]


def test_a_commit_of_another_writer_makes_a_scan_necessary(
    put: Callable[[], int], scans: Scans, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The snapshot of the process is of an earlier state, and does not stay."""
    snapshot_of = SnapshotProcess.snapshot_of

    def after_another(self: SnapshotProcess, state: object) -> Path | None:
        index = LmdbFileStore(tmp_path / "index")
        dataset = open_dataset(LocalDirectory(tmp_path / "store"), index, "d")
        dataset.log.append(dataset.namespace.state().generation, [])
        found = dataset.catch_up()
        index.close()
        return snapshot_of(self, found)

    monkeypatch.setattr(SnapshotProcess, "snapshot_of", after_another)
    assert put() == 1
    assert scans == ["scan"]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1

"""fsck over snapshots and tags, published and on this machine: found, and put right where nothing
is lost by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunkstore import tags
from dieselfs.checking import Finding, FindingKind, FsckReport, Repair, Verdict, fsck, repair
from dieselfs.dataset.dataset import remove_dataset
from dieselfs.snapshots import lifecycle
from metadata.snapshot import Snapshot
from tests.dieselfs.checking.made_dataset import NAME, MadeDataset, retire, some_files


@pytest.fixture
def made() -> MadeDataset:
    made = MadeDataset()
    made.put(some_files())
    return made


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of local snapshots."""
    return tmp_path / "snapshots"


def check(made: MadeDataset, here: Path | None = None) -> FsckReport:
    return fsck(made.store, made.index, NAME, snapshot_folder=here)


def publish(made: MadeDataset, folder: Path) -> tuple[str, Path]:
    """A snapshot of the present state: its key, and a file of it."""
    path = lifecycle.create(made.open(), folder)
    return f"datasets/{NAME}/snapshots/{path.stem.removeprefix(f'{NAME}-')}", path


def only(report: FsckReport) -> Finding:
    [finding] = report.findings
    return finding


def test_a_flip_anywhere_in_a_published_snapshot_is_found(made: MadeDataset, here: Path) -> None:
    key, _ = publish(made, here)
    sound = made.store.get(key)
    for at in range(0, len(sound), len(sound) // 60):
        made.flip(key, at, at % 8)
        finding = only(check(made))
        assert (finding.kind, finding.object) == (FindingKind.SNAPSHOT_DAMAGED, key)
        made.replace(key, sound)


@pytest.mark.parametrize("kept", [0, 10, 100, -1])
def test_a_truncated_published_snapshot(made: MadeDataset, here: Path, kept: int) -> None:
    key, _ = publish(made, here)
    made.replace(key, made.store.get(key)[:kept])
    finding = only(check(made))
    assert finding.kind is FindingKind.SNAPSHOT_DAMAGED


def test_of_the_newest_generation_a_fresh_one_takes_its_place(
    made: MadeDataset, here: Path, tmp_path: Path
) -> None:
    key, _ = publish(made, tmp_path / "elsewhere")
    sound = made.store.get(key)
    made.flip(key, 200)
    report = check(made, here)
    assert (report.verdict, only(report).repair) == (
        Verdict.REPAIRABLE,
        Repair.REPLACE_SNAPSHOT,
    )
    repair(made.store, made.index, report, here)
    assert check(made, here).verdict is Verdict.CLEAN
    assert made.store.get(key) == sound


def test_a_sound_copy_here_takes_the_place_of_an_older_one(made: MadeDataset, here: Path) -> None:
    key, _ = publish(made, here)
    made.put({"later.jpg": b"later"})
    sound = made.store.get(key)
    made.flip(key, 200)
    report = check(made, here)
    assert (report.verdict, only(report).repair) == (
        Verdict.REPAIRABLE,
        Repair.REPUBLISH_SNAPSHOT,
    )
    repair(made.store, made.index, report, here)
    assert made.store.get(key) == sound


def test_another_older_one_is_lost_and_deleted(
    made: MadeDataset, here: Path, tmp_path: Path
) -> None:
    key, _ = publish(made, tmp_path / "elsewhere")
    made.put({"later.jpg": b"later"})
    made.flip(key, 200)
    report = check(made, here)
    finding = only(report)
    assert (report.verdict, finding.repair) == (Verdict.DAMAGED, Repair.DELETE_SNAPSHOT)
    assert finding.repair is not None
    assert finding.repair.loses
    repair(made.store, made.index, report, here)
    assert check(made, here).verdict is Verdict.CLEAN
    assert made.objects("snapshots") == []


def test_another_sound_snapshot_under_the_name(made: MadeDataset, here: Path) -> None:
    key, _ = publish(made, here)
    made.put({"later.jpg": b"later"})
    other, _ = publish(made, here)
    made.replace(key, made.store.get(other))
    finding = only(check(made))
    assert (finding.kind, finding.object) == (FindingKind.SNAPSHOT_DAMAGED, key)


def test_one_of_another_dataset(made: MadeDataset, here: Path) -> None:
    cows = MadeDataset(made.store, made.index, "cows")
    cows.put(some_files())
    path = lifecycle.build(cows.open(), here)
    key = f"datasets/{NAME}/snapshots/{path.stem.removeprefix('cows-')}"
    made.store.create(key, [path.read_bytes()])
    report = check(made)
    assert (only(report).kind, report.verdict) == (FindingKind.SNAPSHOT_FOREIGN, Verdict.REPAIRABLE)
    repair(made.store, made.index, report, here)
    assert check(made).verdict is Verdict.CLEAN


def test_one_of_a_former_life_of_the_name(made: MadeDataset, here: Path) -> None:
    key, path = publish(made, here)
    remove_dataset(made.store, made.index, NAME)
    made.put(some_files(10))
    made.store.create(key, [path.read_bytes()])
    report = check(made, here)
    # The file here is left alone: nobody takes it for one of this dataset.
    assert (only(report).kind, report.local_snapshots) == (FindingKind.SNAPSHOT_FOREIGN, 1)


def test_one_that_names_chunks_that_are_gone(made: MadeDataset, here: Path) -> None:
    snapshot, path = publish(made, here)
    chunk = made.objects()[0]
    lost = len(made.paths(chunk))
    retire(made, chunk)
    made.replace(chunk, None)
    made.open()
    published, local = sorted(check(made, here).findings, key=lambda f: f.object == str(path))
    assert (published.kind, published.object) == (FindingKind.SNAPSHOT_DANGLING, snapshot)
    assert [hit.files for hit in published.snapshots] == [lost]
    assert (local.kind, local.object, local.damaged) == (
        FindingKind.SNAPSHOT_DANGLING,
        str(path),
        False,
    )
    report = check(made, here)
    assert report.verdict is Verdict.DAMAGED
    repair(made.store, made.index, report, here)
    assert check(made, here).verdict is Verdict.CLEAN
    assert not path.exists()


def test_one_that_needs_a_lost_chunk_of_the_present_state_is_not_deleted(
    made: MadeDataset, here: Path
) -> None:
    """Its other files can still be read."""
    snapshot, _ = publish(made, here)
    made.replace(made.objects()[0], None)
    report = check(made, here)
    assert only(report).kind is FindingKind.CHUNK_MISSING
    repair(made.store, made.index, report, here)
    assert made.objects("snapshots") == [snapshot]


class TestFilesHere:
    def test_a_damaged_one_is_deleted(self, made: MadeDataset, here: Path) -> None:
        _, path = publish(made, here)
        damaged = bytearray(path.read_bytes())
        damaged[-70] ^= 1
        path.unlink()
        path.write_bytes(damaged)
        report = check(made, here)
        assert (only(report).kind, report.verdict) == (
            FindingKind.SNAPSHOT_DAMAGED,
            Verdict.REPAIRABLE,
        )
        repair(made.store, made.index, report, here)
        assert not path.exists()
        assert check(made, here).verdict is Verdict.CLEAN

    def test_a_truncated_one(self, made: MadeDataset, here: Path) -> None:
        _, path = publish(made, here)
        path.chmod(0o644)
        os.truncate(path, 100)
        assert only(check(made, here)).object == str(path)

    def test_another_one_under_the_name(self, made: MadeDataset, here: Path) -> None:
        _, older = publish(made, here)
        made.put({"later.jpg": b"later"})
        _, newer = publish(made, here)
        older.unlink()
        newer.rename(older)
        assert only(check(made, here)).object == str(older)

    def test_both_damaged_here_and_there(self, made: MadeDataset, here: Path) -> None:
        key, path = publish(made, here)
        made.flip(key, 300)
        content = made.store.get(key)
        path.unlink()
        path.write_bytes(content)
        report = check(made, here)
        assert len(report.findings) == 2
        repair(made.store, made.index, report, here)
        assert check(made, here).verdict is Verdict.CLEAN
        Snapshot.verify(path)


class TestTags:
    def test_a_tag_of_a_snapshot_that_is_there(self, made: MadeDataset, here: Path) -> None:
        key, _ = publish(made, here)
        tags.tag(made.store, NAME, "best", key.rpartition("/")[2])
        assert check(made).verdict is Verdict.CLEAN

    def test_a_tag_that_points_nowhere(self, made: MadeDataset, here: Path) -> None:
        key, _ = publish(made, here)
        tags.tag(made.store, NAME, "best", key.rpartition("/")[2])
        made.replace(key, None)
        report = check(made)
        finding = only(report)
        assert (finding.kind, finding.object) == (
            FindingKind.TAG_DANGLING,
            f"datasets/{NAME}/tags/best",
        )
        assert (report.verdict, finding.repair) == (Verdict.DAMAGED, None)
        tags.untag(made.store, NAME, "best")
        assert check(made).verdict is Verdict.CLEAN

    def test_a_damaged_tag(self, made: MadeDataset, here: Path) -> None:
        key, _ = publish(made, here)
        tags.tag(made.store, NAME, "best", key.rpartition("/")[2])
        made.flip(made.objects("tags")[0], 50)
        assert only(check(made)).kind is FindingKind.TAG_DANGLING

"""Snapshot files that are stale, damaged or not what their name says: refused with the reason, and
a mount that runs is not harmed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chunkstore.object_keys import snapshot_key
from dieselfs.snapshots import lifecycle
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from tests.faults.case import Measured, fault_case
from tests.faults.reading import content
from tests.faults.served import NAME, Place, Served

BOUND_S = 20.0
VERIFIED = (
    "metadata.snapshot_verification:check_file_hash=none"
    " + metadata.snapshot_verification:check_content=none"
)
FILES = {path: content(path) for path in (f"f{number}" for number in range(20))}
NEW = "later"


@dataclass(frozen=True, slots=True)
class Bench:
    place: Place
    mount: Served
    old: Path
    """What the mount shows."""
    new: Path
    """Of the next generation, published and not on this machine."""
    foreign: Path
    """Of another dataset of the same name."""

    def published(self) -> Path:
        """The file of the object of the newest snapshot."""
        return self.place.object_file(snapshot_key(NAME, self.id_of(self.new)))

    @staticmethod
    def id_of(path: Path) -> str:
        with Snapshot.open(path) as snapshot:
            return snapshot.id


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("snapshots")
    place, other = Place(folder / "place"), Place(folder / "other")
    with place.make(FILES) as first, other.make({"f0": b"of another dataset"}) as foreign:
        with place.mounted(folder / "mnt") as mount:
            with place.make({NEW: content(NEW)}) as second:
                aside = folder / "second"
                shutil.copy(second.path, aside)
                done = place.dlcmd("snapshot", "create", NAME)
                assert done.returncode == 0, done.stderr
                second.path.unlink()
            yield Bench(place, mount, first.path, aside, foreign.path)


def truncated(bench: Bench, file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def emptied(bench: Bench, file: Path) -> None:
    os.truncate(file, 0)


def flipped_at_the_start(bench: Bench, file: Path) -> None:
    flip(file, 20)


def flipped_in_the_middle(bench: Bench, file: Path) -> None:
    flip(file, file.stat().st_size // 2)


def flipped_at_the_end(bench: Bench, file: Path) -> None:
    flip(file, file.stat().st_size - 1)


def of_another_dataset(bench: Bench, file: Path) -> None:
    shutil.copyfile(bench.foreign, file)


def of_another_generation(bench: Bench, file: Path) -> None:
    shutil.copyfile(bench.old, file)


def flip(file: Path, at: int) -> None:
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


DAMAGES = [
    truncated,
    emptied,
    flipped_at_the_start,
    flipped_in_the_middle,
    flipped_at_the_end,
    of_another_dataset,
    of_another_generation,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@fault_case(
    "a published snapshot truncated, flipped, of another dataset, or of another generation under its name",
    promise="refused when it is pulled, saying why; nothing is left in the folder of snapshots",
    bound_s=BOUND_S,
    check="dieselfs.snapshots.lifecycle:_verify=none",
)
def test_pulled(bench: Bench, measured: Measured, tmp_path: Path, damage: Callable[[Bench, Path], None]) -> None:  # fmt: skip
    file = bench.published()
    kept = tmp_path / "kept"
    shutil.copy(file, kept)
    damage(bench, file)
    try:
        pulled = measured.call(
            lambda: lifecycle.pull(
                bench.place.objects, NAME, bench.id_of(bench.new), tmp_path / "pulled"
            )
        )
        assert isinstance(pulled, SnapshotRefused), pulled
        assert not list((tmp_path / "pulled").glob("*.snapshot*"))
    finally:
        shutil.copy(kept, file)
    measured.note(str(pulled).partition(":")[2][:60].strip() or str(pulled)[:60])


@pytest.mark.parametrize("damage", [truncated, flipped_in_the_middle, of_another_dataset], ids=lambda damage: damage.__name__)  # fmt: skip
@fault_case(
    "a local snapshot file truncated, flipped, or another's, when it is mounted or loaded by name",
    promise="refused, saying why",
    bound_s=BOUND_S,
    check={
        "truncated": f"metadata.snapshot_format:_check_length=none + {VERIFIED}",
        "flipped_in_the_middle": f"{VERIFIED} + metadata.snapshot_verification:has_file_hash=true",
        "of_another_dataset": "dieselfs.fuse.starting.store_probe:_check_chunks=none",
    },
)
def test_chosen(bench: Bench, measured: Measured, tmp_path: Path, damage: Callable[[Bench, Path], None]) -> None:  # fmt: skip
    file = tmp_path / "mine.snapshot"
    shutil.copy(bench.new, file)
    damage(bench, file)
    with measured.felt():
        done = bench.place.refused(tmp_path / "mnt", "--no-index", "--snapshot", file)
    assert done.returncode != 0
    assert "mine.snapshot" in done.stderr or NAME in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    measured.note(f"exit code {done.returncode}")


@fault_case(
    "the newest published snapshot flipped, while a mount is told to refresh",
    promise="the refresh is refused; the mount goes on with what it shows, and refreshes when the object is whole",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.verify=none",
)
def test_refreshed(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    file, mount = bench.published(), bench.mount
    kept = tmp_path / "kept"
    shutil.copy(file, kept)
    flipped_in_the_middle(bench, file)
    with measured.felt():
        done = bench.place.dlcmd("mount", "--refresh", "--no-index", NAME, mount.path)
    assert done.returncode != 0
    assert not (mount.path / NEW).exists()
    assert mount.wrong(FILES) == []
    shutil.copy(kept, file)
    with measured.felt():
        done = bench.place.dlcmd("mount", "--refresh", "--no-index", NAME, mount.path)
    assert done.returncode == 0, done.stderr
    assert (mount.path / NEW).read_bytes() == content(NEW)


@fault_case(
    "a snapshot older than the dataset",
    promise="mounted when it is named, and otherwise only when asked; it says so",
    bound_s=BOUND_S,
    check="dieselfs.snapshots.lifecycle:check_fresh=none",
)
def test_stale(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    place, mountpoint = Place(tmp_path / "place"), tmp_path / "mnt"
    with place.make(FILES) as first:
        older = first.id
    with place.make({NEW: content(NEW)}) as newest:
        newest.path.unlink()
    with measured.felt():
        done = place.refused(mountpoint)
    assert done.returncode != 0
    assert "--refresh" in done.stderr
    with place.mounted(mountpoint, "--snapshot", older) as mount:
        assert (mount.path / "f1").read_bytes() == FILES["f1"]
        assert not (mount.path / NEW).exists()

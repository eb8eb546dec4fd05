"""Listings ahead of a reader: what it comes to is there already, and nobody notices otherwise."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.fuse.mountpoint import unmount
from tests.mount.mounting import Mount, eventually, is_alive, mounted
from tests.mount.packing import PackedDataset, pack
from tests.mount.versions import Versions, pack_versions

CLASSES = 60
FILES = 30

pytestmark = pytest.mark.parametrize("kind", ["fast"], indirect=True)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("classes")
    for n in range(CLASSES):
        (folder / "source" / f"c{n:02}").mkdir(parents=True)
        for m in range(FILES):
            (folder / "source" / f"c{n:02}" / f"{m}").write_bytes(b"%d" % m)
    return pack(folder / "source", folder)


@pytest.fixture
def mount(classes: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(classes, tmp_path) as mount:
        yield mount


def listed_ahead(mount: Mount) -> int:
    count: int = mount.statistics()["listed_ahead"]["directories"]
    return count


def readdirs(mount: Mount) -> int:
    count: int = mount.statistics()["requests"]["readdir"]
    return count


def attribute_requests(mount: Mount) -> int:
    counts: dict[str, int] = mount.statistics()["requests"]
    return counts.get("lookup", 0) + counts.get("getattr", 0)


def list_classes(mount: Mount, *numbers: int) -> None:
    for number in numbers:
        assert len(os.listdir(mount.path / f"c{number:02}")) == FILES


def walk(mount: Mount) -> dict[str, list[str]]:
    return {
        os.path.relpath(top, mount.path): sorted(files) for top, _, files in os.walk(mount.path)
    }


def names_of_children(pid: int) -> dict[str, int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = Path(f"/proc/{pid}/task").iterdir()
    for thread in threads:  # trio starts processes in a thread of its own
        children += (thread / "children").read_text().split()
    return {Path(f"/proc/{child}/comm").read_text().strip(): int(child) for child in children}


def lister(mount: Mount) -> int:
    """Its process id, once it is there."""
    list_classes(mount, 0, 1)
    eventually(lambda: listed_ahead(mount) == 1, "c02 is listed ahead")
    return names_of_children(mount.pid)["dlcmd-lister"]


def look_at_listed_ahead(mount: Mount, first: int) -> tuple[int, int]:
    """Requests for listings and for attributes that were made for four directories that had been listed ahead."""
    done = listed_ahead(mount)
    list_classes(mount, first, first + 1)
    eventually(lambda: listed_ahead(mount) >= done + 1, "one directory is listed ahead")
    listings = readdirs(mount)
    list_classes(mount, first + 2)
    listings = readdirs(mount) - listings
    list_classes(mount, first + 3)
    eventually(lambda: listed_ahead(mount) >= done + 4, "three more are listed ahead")
    listings, attributes = listings - readdirs(mount), attribute_requests(mount)
    for n in (4, 5, 6):
        with os.scandir(mount.path / f"c{first + n:02}") as entries:
            assert len([entry.stat().st_size for entry in entries]) == FILES
    return listings + readdirs(mount), attribute_requests(mount) - attributes


def test_what_was_listed_ahead_makes_no_requests(mount: Mount) -> None:
    # The machine may drop its caches meanwhile, but not every time.
    listings, attributes = zip(
        *(look_at_listed_ahead(mount, first) for first in (0, 20, 40)), strict=True
    )
    assert min(listings) == 0
    assert min(attributes) < FILES  # our own looks at the counters make some


def test_a_walk_finds_everything(mount: Mount) -> None:
    found = walk(mount)
    assert found.pop(".") == []
    assert len(found) == CLASSES
    assert all(len(files) == FILES for files in found.values())
    assert walk(mount) == {".": [], **found}


def test_there_is_no_process_for_those_who_do_not_walk(mount: Mount) -> None:
    os.listdir(mount.path)
    list_classes(mount, 7, 3, 20)
    assert listed_ahead(mount) == 0
    assert "dlcmd-lister" not in names_of_children(mount.pid)


def test_the_process_is_idle_outside_of_the_mount_and_ends_with_it(mount: Mount) -> None:
    process = lister(mount)
    assert os.readlink(f"/proc/{process}/cwd") == "/"
    held = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir()]
    assert not any(path.startswith((str(mount.path), "/dev/fuse")) for path in held)
    unmount(mount.path)
    mount.wait_until_ended()
    eventually(lambda: not is_alive(process), "the lister's end")


def test_it_ends_with_a_daemon_that_is_killed(mount: Mount) -> None:
    process = lister(mount)
    os.kill(mount.pid, signal.SIGKILL)
    mount.wait_until_ended()
    eventually(lambda: not is_alive(process), "the lister's end")


def test_a_mount_can_be_unmounted_right_after_a_walk(mount: Mount) -> None:
    list_classes(mount, *range(CLASSES // 2))
    unmount(mount.path)
    mount.wait_until_ended()


def test_a_walk_goes_on_without_a_lister_that_was_killed(mount: Mount) -> None:
    os.kill(lister(mount), signal.SIGKILL)
    list_classes(mount, *range(CLASSES))
    eventually(lambda: "not listed ahead any more" in mount.log, "a line in the log")
    assert listed_ahead(mount) == 1


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    before, after = (
        {f"c{n:02}/{word}-{m}": b"" for n in range(CLASSES) for m in range(FILES)}
        for word in ("old", "new")
    )
    return pack_versions(before, after, tmp_path_factory.mktemp("versions"))


def test_after_a_refresh_it_lists_the_new_snapshot(versions: Versions, tmp_path: Path) -> None:
    with mounted(versions.before, tmp_path) as mount:
        process = lister(mount)
        list_classes(mount, *range(CLASSES // 2))
        mount.refresh(versions.after.snapshot)  # whatever the lister is doing
        before = listed_ahead(mount)
        for top, files in walk(mount).items():
            assert files == sorted(f"new-{m}" for m in range(FILES if top != "." else 0))
        eventually(lambda: listed_ahead(mount) > before, "directories listed ahead again")
        assert names_of_children(mount.pid)["dlcmd-lister"] == process

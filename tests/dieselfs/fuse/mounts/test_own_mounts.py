"""The mounts of a file system by unique ids, with mounts of tmpfs."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_syscalls import attach, clone, detach, new_mount, unique_mount
from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.own_mounts import OwnMounts
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


class Places:
    """Mountpoints, each with at most one mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: list[Path] = []

    def show(self, mount: int) -> Path:
        place = self._folder / str(len(self._shown))
        place.mkdir()
        attach(mount, place)
        os.close(mount)
        self._shown.append(place)
        return place

    def close(self) -> None:
        for place in self._shown:
            while entry_at(place) is not None:
                detach(place)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    places = Places(tmp_path)
    try:
        yield places
    finally:
        places.close()


def new_place(places: Places) -> Path:
    return places.show(new_mount("tmpfs", [], 0))


def shown(own: OwnMounts) -> list[Path]:
    return [entry.mountpoint for entry in own.entries()]


def test_a_mount_is_found_by_its_path_and_by_a_descriptor(places: Places) -> None:
    place = new_place(places)
    descriptor = os.open(place, os.O_PATH)
    try:
        assert unique_mount(place) == unique_mount(descriptor)
        assert unique_mount(place).device == (
            os.major(place.stat().st_dev),
            os.minor(place.stat().st_dev),
        )
    finally:
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        unique_mount(place / "missing")


def test_the_next_file_system_of_the_number_is_another(places: Places) -> None:
    first = new_place(places)
    own = OwnMounts.at(first)
    assert shown(own) == [first]
    detach(first)

    def reused() -> Path | None:
        place = new_place(places)
        return place if unique_mount(place).device == own.device else None

    following = eventually(reused, "a mount with the same device number")
    assert following is not None
    assert shown(own) == []
    own.detach()
    assert shown(OwnMounts.at(following)) == [following]
    assert shown(OwnMounts(own.device, None)) == [following], "an older kernel has no other rule"


def test_clones_are_noted_while_the_first_mount_is_shown(places: Places) -> None:
    first = new_place(places)
    own = OwnMounts.at(first)
    second = places.show(clone(first))
    assert shown(own) == [first, second]
    detach(first)
    assert shown(own) == [second]
    own.detach()
    assert (shown(own), entry_at(second)) == ([], None)


def test_a_mount_on_top_is_none_of_its_own(places: Places) -> None:
    first = new_place(places)
    own = OwnMounts.at(first)
    with ExitStack() as opened:
        cover = new_mount("tmpfs", [], 0)
        opened.callback(os.close, cover)
        attach(cover, first)
        assert own.entries() == []
        own.detach()
        assert unique_mount(first) == unique_mount(cover)
    detach(first)
    assert shown(own) == [first]


def test_the_state_of_a_server_names_the_same_mounts(places: Places) -> None:
    first = new_place(places)
    own = OwnMounts.at(first)
    kept = json.loads(json.dumps(own.state))
    assert shown(OwnMounts.of(kept)) == [first]
    del kept["mount_ids"]
    assert shown(OwnMounts.of(kept)) == [first], "the state of a former version"
    assert shown(OwnMounts.of({})) == []

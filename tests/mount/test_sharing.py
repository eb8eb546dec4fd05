"""A mount that shows what another one shows, which is unmounted just then."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_syscalls import SAFE, attach, detach, new_mount, unique_mount
from dieselfs.fuse.mounts.mount_table import MountInfo, MountState, entry_at
from dieselfs.fuse.starting import start
from tests.mount.mounting import needs_fuse

pytestmark = needs_fuse


@pytest.fixture
def info(tmp_path: Path) -> Iterator[MountInfo]:
    """A mount as it has answered."""
    shown, place = tmp_path / "shown", tmp_path / "place"
    shown.mkdir()
    place.mkdir()
    made = new_mount("tmpfs", [], SAFE)
    attach(made, shown)
    os.close(made)
    details = {"sharing_key": "key"}
    device = unique_mount(shown).device
    yield MountInfo(shown, "dieselfs:d@1", MountState.SERVING, True, details, device=device)
    for at in (place, shown):
        with suppress(OSError):
            detach(at)


@pytest.fixture
def place(info: MountInfo, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(start, "ask", lambda entries, timeout_s: [info])
    return info.mountpoint.with_name("place")


def test_a_mount_is_shown_at_another_place(info: MountInfo, place: Path) -> None:
    assert start._share("key", "d@1", place) is not None
    assert unique_mount(place).device == info.device


def test_a_mount_that_is_unmounted_meanwhile_is_not_shown(info: MountInfo, place: Path) -> None:
    """The place would show the empty directory below it."""
    detach(info.mountpoint)
    assert start._share("key", "d@1", place) is None
    assert entry_at(place) is None
    info.mountpoint.rmdir()
    assert start._share("key", "d@1", place) is None

"""Reads of a file system that no path leads to any more: they last as long as the store does, and
none of them keeps a file system that nobody uses."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.ending_mounts import is_ending
from dieselfs.fuse.mounts.mount_syscalls import new_mount, unique_mount
from dieselfs.fuse.mounts.mountpoint import unmount
from tests.eventually import PATIENCE_S, eventually
from tests.mount.mounting import Mount, is_alive, mounted
from tests.mount.packing import random_bytes
from tests.mount.versions import Versions, pack_versions

all_fronts = pytest.mark.parametrize("kind", ["erofs", "erofs-loop", "fuse"], indirect=True)

CONTENT = random_bytes(200_000, seed=1)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return pack_versions(
        {"file": CONTENT}, {"file": b"another"}, tmp_path_factory.mktemp("versions")
    )


@pytest.fixture
def mount(versions: Versions, tmp_path: Path) -> Iterator[Mount]:
    with mounted(versions.before, tmp_path) as mount:
        yield mount


def hide(mount: Mount, versions: Versions, how: str) -> None:
    """Let no path lead to the file system any more."""
    if how == "refreshed":
        mount.refresh(versions.after.snapshot)
    else:
        unmount(mount.path, lazy=True)


@all_fronts
@pytest.mark.parametrize("how", ["refreshed", "detached"])
def test_a_read_of_an_open_file_may_take_long(mount: Mount, versions: Versions, how: str) -> None:
    """Formerly it failed with EIO within a second."""
    with open(mount.path / "file", "rb") as kept, ThreadPoolExecutor(1) as pool:
        hide(mount, versions, how)
        mount.fail_with("held")
        try:
            reading = pool.submit(kept.read)
            with pytest.raises(TimeoutError):  # the server looks at its mounts once a second
                reading.result(2.5)
        finally:
            mount.fail_with("")
        assert reading.result(PATIENCE_S) == CONTENT


@all_fronts
@pytest.mark.parametrize("how", ["refreshed", "detached"])
def test_a_killed_reader_keeps_no_server(mount: Mount, versions: Versions, how: str) -> None:
    server = mount.server_pid
    mount.fail_with("held")
    try:
        with subprocess.Popen(["cat", mount.path / "file"], stdout=subprocess.DEVNULL) as reader:
            eventually(lambda: mount.statistics()["reads_through_threads"], "a read that waits")
            hide(mount, versions, how)
            reader.kill()
            eventually(lambda: not is_alive(server), "the end of its server")
    finally:
        mount.fail_with("")


def test_what_is_in_use_or_unknown_has_not_ended() -> None:
    def unknown(device: tuple[int, int]) -> None:
        raise OSError(errno.ENOSYS, "as on ARM")

    device = os.stat("/").st_dev
    assert not is_ending((os.major(device), os.minor(device)))
    assert not is_ending((0, 0), unknown)
    assert not is_ending((0, 0), lambda device: time.sleep(1))  # it waits for no lock of the kernel


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_is_unmounted_has_ended() -> None:
    def has_ended() -> bool:
        mount = new_mount("tmpfs", [("size", "4096")])
        device = unique_mount(mount).device
        assert not is_ending(device)
        os.close(mount)
        return is_ending(device)

    eventually(has_ended, "an end before another file system gets the device number")

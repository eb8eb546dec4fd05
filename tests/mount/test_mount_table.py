"""Which mounts there are, also when some are dead or hang."""

import os
import signal
import time
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import MountState, mounts
from metadata.snapshot import Snapshot
from tests.eventually import eventually, scaled_by_load
from tests.mount.mounting import Mount, both_fronts, listed, mounted
from tests.mount.packing import PackedDataset
from tests.stopping import stop

pytestmark = both_fronts


def test_a_serving_mount_says_what_it_shows(small: PackedDataset, small_mount: Mount) -> None:
    found = listed(small_mount.path)
    with Snapshot.open(small.snapshot) as snapshot:
        assert (found.dataset, found.snapshot) == ("sample", snapshot.id)
        assert found.generation == snapshot.generation
        assert snapshot.id in found.source
    assert (found.state, found.pid) == (MountState.SERVING, small_mount.pid)
    assert found.mounted is not None
    assert found.details is not None


def test_a_dead_mount_is_listed_as_dead(small_mount: Mount) -> None:
    small_mount.kill()
    assert listed(small_mount.path).state is MountState.DEAD


def test_a_control_directory_is_not_listed_as_a_mount(small_mount: Mount) -> None:
    assert not [info for info in mounts() if info.mountpoint.name == ".dieselfs"]


def test_a_stopped_supervisor_is_not_missed(small_mount: Mount) -> None:
    stop(small_mount.pid)
    try:
        assert listed(small_mount.path).state is MountState.SERVING
    finally:
        os.kill(small_mount.pid, signal.SIGCONT)


def test_a_mount_whose_supervisor_was_killed_names_its_server(small_mount: Mount) -> None:
    server = small_mount.server_pid
    os.kill(small_mount.pid, signal.SIGKILL)
    eventually(lambda: listed(small_mount.path).pid == server, "its own process id")
    assert listed(small_mount.path).state is MountState.SERVING


def test_a_stopped_server_does_not_hang_the_list(small_mount: Mount) -> None:
    server = small_mount.server_pid
    stop(server)
    try:
        began = time.monotonic()
        [found] = [info for info in mounts(0.5) if info.mountpoint == small_mount.path]
        assert found.state is MountState.HUNG
        assert time.monotonic() - began < scaled_by_load(5)
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.parametrize("name", ["with space", "tab\tand\nnewline", "back\\slash", "ünï-\udcff"])
def test_any_mountpoint_name_is_understood(small: PackedDataset, tmp_path: Path, name: str) -> None:
    with mounted(small, tmp_path / name) as mount:
        assert listed(mount.path).state is MountState.SERVING

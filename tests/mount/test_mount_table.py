"""Which mounts there are, also when some are dead or hang."""

import os
import signal
import time
from pathlib import Path

import pytest

from dieselfs.fuse.mount_table import MountInfo, MountState, mounts
from metadata.snapshot import Snapshot
from tests.mount.mounting import Mount, mounted
from tests.mount.packing import PackedDataset


def listed(mount: Mount, timeout_s: float = 10.0) -> MountInfo:
    [found] = [info for info in mounts(timeout_s) if info.mountpoint == mount.path]
    return found


def test_a_serving_mount_says_what_it_shows(small: PackedDataset, small_mount: Mount) -> None:
    found = listed(small_mount)
    with Snapshot.open(small.snapshot) as snapshot:
        assert (found.dataset, found.snapshot) == ("sample", snapshot.id)
        assert found.generation == snapshot.generation
        assert found.source == f"dieselfs:sample@{snapshot.id}"
    assert (found.state, found.pid) == (MountState.SERVING, small_mount.pid)
    assert found.mounted is not None
    assert found.details is not None


def test_a_dead_mount_is_listed_as_dead(small_mount: Mount) -> None:
    os.kill(small_mount.pid, signal.SIGKILL)
    small_mount.wait_until_ended()
    assert listed(small_mount).state is MountState.DEAD


def test_a_stopped_daemon_does_not_hang_the_list(small_mount: Mount) -> None:
    os.kill(small_mount.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert listed(small_mount, timeout_s=0.5).state is MountState.HUNG
        assert time.monotonic() - began < 5
    finally:
        os.kill(small_mount.pid, signal.SIGCONT)


@pytest.mark.parametrize("name", ["with space", "tab\tand\nnewline", "back\\slash", "ünï-\udcff"])
def test_any_mountpoint_name_is_understood(small: PackedDataset, tmp_path: Path, name: str) -> None:
    with mounted(small, tmp_path / name) as mount:
        assert listed(mount).state is MountState.SERVING

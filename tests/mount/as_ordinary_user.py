"""What an ordinary user does with mounts: `python -m tests.mount.as_ordinary_user SNAPSHOT STORE
FOLDER`.

Run by test_ordinary_user, without privileges; FOLDER belongs to the user. Prints what was passed.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.mounts.daemon_names import SERVER, SUPERVISOR, daemons_of, process_state
from dieselfs.fuse.mounts.mount_table import MountState, entry_at
from dieselfs.fuse.mounts.mountpoint import mount_at, unmount
from tests.eventually import PATIENCE_S, eventually
from tests.mount.mounting import end, listed, mounted, start
from tests.mount.packing import PackedDataset, random_bytes
from tests.stopping import stop


def mounts_reads_and_unmounts(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder) as mount:
        assert (mount.path / "large").read_bytes() == random_bytes(3_000_000)
        assert (mount.path / "large").stat().st_uid == os.getuid() != 0
        found = listed(mount.path)
        assert (found.state, found.pid) == (MountState.SERVING, mount.pid)
        unmount(mount.path)
        assert entry_at(mount.path) is None
        mount.wait_until_ended()


def ends_a_mount_by_a_signal(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder) as mount:
        os.kill(mount.pid, signal.SIGTERM)
        mount.wait_until_ended()
        eventually(lambda: entry_at(mount.path) is None, "the mount is gone")


def is_told_who_uses_a_mount(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder) as mount:
        with subprocess.Popen(["sleep", "99"], cwd=mount.path) as user:
            try:
                with pytest.raises(MountpointBusy, match=r"sleep"):
                    unmount(mount.path)
                unmount(mount.path, lazy=True)
            finally:
                user.kill()


def unmounts_although_the_daemon_is_stopped(packed: PackedDataset, folder: Path) -> None:
    """By `dlcmd umount`, which aborts the user's own connection and kills the user's processes."""
    with mounted(packed, folder) as mount:
        daemons = daemons_of(mount_at(mount.path).device)
        assert {daemon.role for daemon in daemons} == {SUPERVISOR, SERVER}
        for daemon in daemons:
            stop(daemon.pid)
        command = [sys.executable, "-m", "dieselfs", "umount", os.fspath(mount.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert "its daemon did not answer: the connection was aborted" in done.stderr
        assert entry_at(mount.path) is None
        for daemon in daemons:
            eventually(lambda daemon=daemon: process_state(daemon.pid) in ("", "Z"), "its end")  # type: ignore[misc]


def mounts_again_after_the_daemon_was_killed(packed: PackedDataset, folder: Path) -> None:
    first = start(packed, folder)
    first.kill()
    try:
        with mounted(packed, folder) as second:
            assert (second.path / "d0" / "0").read_bytes() == random_bytes(2000)
    finally:
        end(first)


def is_told_that_allow_other_needs_leave(packed: PackedDataset, folder: Path) -> None:
    if "\nuser_allow_other" in Path("/etc/fuse.conf").read_text():
        return
    with pytest.raises(MountError, match="user_allow_other"):
        start(packed, folder, "--allow-other")


def is_told_that_the_mountpoint_is_not_his(packed: PackedDataset, folder: Path) -> None:
    (folder / "mnt").mkdir(mode=0o555, parents=True)
    with pytest.raises(MountError, match=r"cannot mount at .*mnt: .*write access"):
        start(packed, folder)


def main() -> None:
    snapshot, store, folder = (Path(argument) for argument in sys.argv[1:])
    packed = PackedDataset(snapshot, store, Path("/nowhere"))
    for scenario in (
        mounts_reads_and_unmounts,
        ends_a_mount_by_a_signal,
        is_told_who_uses_a_mount,
        unmounts_although_the_daemon_is_stopped,
        mounts_again_after_the_daemon_was_killed,
        is_told_that_allow_other_needs_leave,
        is_told_that_the_mountpoint_is_not_his,
    ):
        scenario(packed, folder / scenario.__name__)
        print("passed", scenario.__name__)


if __name__ == "__main__":
    main()

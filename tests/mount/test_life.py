"""A mount's beginning and end: background start, signals, death and what comes after it."""

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.mounts import mount_table, mountpoint
from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.mountpoint import check_mountable, unmount
from dieselfs.fuse.supervision import daemonize
from dieselfs.fuse.supervision.daemonize import start_in_background
from tests.eventually import eventually, scaled_by_load
from tests.mount.mounting import (
    PATIENCE_S,
    Mount,
    both_fronts,
    daemon_command,
    end,
    is_alive,
    mounted,
    start,
)
from tests.mount.packing import PackedDataset, random_bytes
from tests.stopping import stop

pytestmark = both_fronts


GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
"""EIO before EROFS, which has a device that fails."""


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor that may outlive its mount, after which closing it fails."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_and_ends_the_daemon(small_mount: Mount, number: signal.Signals) -> None:
    os.kill(small_mount.pid, number)
    small_mount.wait_until_ended()
    assert entry_at(small_mount.path) is None
    assert "stopped by a signal" in small_mount.log


def test_unmounting_ends_the_daemon(small_mount: Mount) -> None:
    unmount(small_mount.path)
    assert entry_at(small_mount.path) is None
    small_mount.wait_until_ended()
    assert "Traceback" not in small_mount.log


def test_a_signal_ends_a_mount_in_use(small_mount: Mount) -> None:
    with opened(small_mount.path / "large") as fd:
        assert os.read(fd, 10) == random_bytes(3_000_000)[:10]
        os.kill(small_mount.pid, signal.SIGTERM)
        small_mount.wait_until_ended()
        assert entry_at(small_mount.path) is None
        with pytest.raises(OSError):
            os.pread(fd, 100, 2_000_000)


def test_a_signal_ends_a_mount_whose_store_hangs_within_five_seconds(small_mount: Mount) -> None:
    small_mount.fail_with("stuck")
    failures: list[int | None] = []

    def read() -> None:
        try:
            (small_mount.path / "large").read_bytes()
        except OSError as error:
            failures.append(error.errno)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: small_mount.statistics()["reads_through_threads"], "a read that hangs")
    began = time.monotonic()
    os.kill(small_mount.pid, signal.SIGTERM)
    small_mount.wait_until_ended()
    assert time.monotonic() - began < scaled_by_load(5.0)
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert failures
    assert failures[0] in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


def test_requests_in_flight_are_answered_before_the_end(small_mount: Mount) -> None:
    content = random_bytes(3_000_000)
    outcomes: list[object] = []

    def read_again_and_again() -> None:
        try:
            while True:
                fd = os.open(small_mount.path / "large", os.O_RDONLY)
                try:
                    # The kernel gives a read that fails in the middle what came before.
                    data = os.pread(fd, 1 << 20, 0)
                    outcomes.append(bool(data) and content.startswith(data))
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
        except OSError as error:
            outcomes.append(error.errno)

    readers = [threading.Thread(target=read_again_and_again) for _ in range(4)]
    for reader in readers:
        reader.start()
    eventually(lambda: len(outcomes) > 20, "some reads")
    os.kill(small_mount.pid, signal.SIGTERM)
    small_mount.wait_until_ended()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert False not in outcomes, "no wrong byte, whenever the end comes"


def test_after_sigkill_the_same_mountpoint_can_be_mounted_again(
    small: PackedDataset, tmp_path: Path
) -> None:
    first = start(small, tmp_path)
    try:
        first.kill()
        with pytest.raises(OSError) as raised:
            (first.path / "large").read_bytes()
        assert raised.value.errno in GONE
        with pytest.raises(OSError) as raised:
            os.listdir(first.path / ".dieselfs")
        assert raised.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        with mounted(small, tmp_path) as second:
            assert second.pid != first.pid
            assert (second.path / "large").read_bytes() == random_bytes(3_000_000)
            assert "is gone: unmounting it" in second.log
    finally:
        end(first)


def test_a_dead_mount_is_cleared_away_also_while_its_files_are_open(
    small: PackedDataset, tmp_path: Path
) -> None:
    first = start(small, tmp_path)
    try:
        with opened(first.path / "large"):
            first.kill()
            check_mountable(first.path)
            assert entry_at(first.path) is None
    finally:
        end(first)


def test_the_mountpoint_may_be_relative_or_a_link(small: PackedDataset, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mnt").symlink_to("real")
    with mounted(small, tmp_path) as mount:
        assert (tmp_path / "real" / "large").stat().st_size == 3_000_000
        unmount(Path(os.path.relpath(tmp_path / "mnt")))
        mount.wait_until_ended()
    assert entry_at(tmp_path / "real") is None


def refusal(packed: PackedDataset, mountpoint: Path, *options: str) -> MountError:
    """The error that a background start of this mount ends with."""
    log_file = mountpoint.parent / "refused.log"
    command = daemon_command(packed, mountpoint, *options)
    try:
        pid = start_in_background(command, mountpoint, log_file=log_file, timeout_s=PATIENCE_S)
    except MountError as error:
        return error
    os.kill(pid, signal.SIGTERM)
    pytest.fail("the mount was made")


def test_a_missing_mountpoint_is_refused(small: PackedDataset, tmp_path: Path) -> None:
    assert "does not exist" in str(refusal(small, tmp_path / "absent"))


def test_a_file_is_no_mountpoint(small: PackedDataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in str(refusal(small, tmp_path / "file"))


def test_a_mountpoint_that_is_not_empty_is_refused_unless_allowed(
    small: PackedDataset, tmp_path: Path
) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "mnt" / "mine").write_text("kept")
    assert "is not empty" in str(refusal(small, tmp_path / "mnt"))
    with mounted(small, tmp_path, "--nonempty") as mount:
        assert not (mount.path / "mine").exists()
    assert (tmp_path / "mnt" / "mine").read_text() == "kept"


def test_a_mounted_mountpoint_is_refused(small: PackedDataset, small_mount: Mount) -> None:
    assert "is already mounted at" in str(refusal(small, small_mount.path))
    with pytest.raises(MountpointBusy):
        check_mountable(small_mount.path)


def test_a_mountpoint_whose_server_is_stopped_is_refused_in_time(small_mount: Mount) -> None:
    server = small_mount.server_pid
    stop(server)
    try:
        with pytest.raises(MountpointBusy, match="does not answer"):
            check_mountable(small_mount.path)
    finally:
        os.kill(server, signal.SIGCONT)


def test_the_error_of_a_start_that_failed_is_the_daemons_own(
    small: PackedDataset, tmp_path: Path
) -> None:
    (tmp_path / "mnt").mkdir()
    command = daemon_command(small, tmp_path / "mnt")
    command[command.index(str(small.snapshot))] = str(tmp_path / "no-snapshot")
    with pytest.raises(MountError, match="no-snapshot") as raised:
        start_in_background(command, tmp_path / "mnt", log_file=tmp_path / "log")
    assert raised.value.hint is not None
    assert str(tmp_path / "log") in raised.value.hint


def test_a_daemon_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, daemons = daemonize._started, []

    def noted(*arguments: Any) -> Any:
        daemons.append(started(*arguments))
        return daemons[-1]

    monkeypatch.setattr(daemonize, "_started", noted)
    with pytest.raises(MountError, match="did not answer within"):
        start_in_background(["sleep", "99"], tmp_path, log_file=tmp_path / "log", timeout_s=1)
    [daemon] = daemons
    assert not is_alive(daemon.pid)


def test_the_daemon_is_in_a_session_of_its_own(small_mount: Mount) -> None:
    assert os.getsid(small_mount.pid) == small_mount.pid


def test_a_mount_in_use_is_busy_and_says_by_whom(small_mount: Mount) -> None:
    with subprocess.Popen(["sleep", "99"], cwd=small_mount.path) as user:
        try:
            named = Path(f"/proc/{user.pid}/comm")  # shortly after its parent has gone on
            eventually(lambda: named.read_text() == "sleep\n", "a process that has its name")
            with pytest.raises(MountpointBusy, match=rf"sleep \({user.pid}\)"):
                unmount(small_mount.path)
            assert (small_mount.path / "large").exists()
            unmount(small_mount.path, lazy=True)
            assert entry_at(small_mount.path) is None
        finally:
            user.kill()
    small_mount.wait_until_ended()


@pytest.fixture
def asking(small_mount: Mount) -> Iterator[subprocess.Popen[bytes]]:
    """A process that asks the mount for a document, as `dlcmd mounts` does: it has that open and
    cannot write it. The document is a long file, which `head` does not buffer."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(4096))
    os.set_blocking(write_end, True)
    popen = subprocess.Popen

    def into_full_pipe(*arguments: Any, **options: Any) -> Any:
        return popen(*arguments, **options | {"stdout": write_end})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", into_full_pipe)
        process = mount_table._start_reading(small_mount.path, b"../large")
    try:
        link = Path(f"/proc/{process.pid}")
        eventually(lambda: mountpoint._uses(link, small_mount.path), "an open document")
        yield process
    finally:
        process.kill()
        process.communicate()
        for fd in (read_end, write_end):
            os.close(fd)


def test_an_unmount_waits_for_a_list_of_mounts(
    small_mount: Mount, asking: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a list may have a document open for longer than an unmount waits for the
    mount's helpers."""
    used_by, named = mountpoint._used_by, []

    def used_by_then_continued(place: Path) -> str:
        named.append(used_by(place))
        asking.kill()
        asking.wait()
        return named[-1]

    monkeypatch.setattr(mountpoint, "_used_by", used_by_then_continued)
    monkeypatch.setattr(mountpoint, "_UNSEEN_PATIENCE_S", PATIENCE_S)
    unmount(small_mount.path)
    assert set(named) == {""}  # another test may list the mounts too
    small_mount.wait_until_ended()


def test_a_list_of_mounts_that_ends_meanwhile_is_no_user(
    small_mount: Mount, asking: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = mountpoint._uses

    def uses_and_ends(process: Path, place: Path) -> bool:
        found = uses(process, place)
        if process.name == str(asking.pid):
            asking.kill()
            eventually(lambda: not is_alive(asking.pid), "its end")
        return found

    monkeypatch.setattr(mountpoint, "_uses", uses_and_ends)
    assert mountpoint._used_by(small_mount.path) == ""


def test_beside_a_list_of_mounts_a_user_is_named(
    small_mount: Mount, asking: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(["head", "-c", "9"], cwd=small_mount.path, stdin=subprocess.PIPE) as user:
        with pytest.raises(MountpointBusy, match=rf"is in use by head \({user.pid}\)$"):
            unmount(small_mount.path)


def test_an_unmount_waits_for_a_user_that_cannot_be_seen(
    small_mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a process that ends keeps the mount busy, and has no files any more."""
    monkeypatch.setattr("dieselfs.fuse.mounts.mountpoint._used_by", lambda mountpoint: "")
    monkeypatch.setattr("dieselfs.fuse.mounts.mountpoint._UNSEEN_PATIENCE_S", PATIENCE_S)
    with subprocess.Popen(["sleep", "1"], cwd=small_mount.path):
        unmount(small_mount.path)
    small_mount.wait_until_ended()


def test_unmounting_what_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="no DieselFS mount"):
        unmount(tmp_path)
    with pytest.raises(MountError, match=r"no DieselFS mount .* but proc"):
        unmount(Path("/proc"))


def test_unmounting_while_reading_harms_nobody(small_mount: Mount) -> None:
    content = random_bytes(3_000_000)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                if (small_mount.path / "large").read_bytes() != content:
                    wrong.append("wrong bytes")
            except FileNotFoundError:
                return  # it is unmounted
            except OSError as error:
                if error.errno not in GONE:
                    wrong.append(str(error))
                return

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    eventually(lambda: small_mount.statistics()["requests"].get("read"), "reads")
    unmount(small_mount.path, lazy=True)
    stop.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    small_mount.wait_until_ended()
    assert wrong == []


def test_readiness_follows_the_protocol_of_systemd(small: PackedDataset, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"dieselfs-test-{os.getpid()}"
        receiver.bind(f"\0{name}")
        receiver.settimeout(PATIENCE_S)
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{name}"}
        command = daemon_command(small, tmp_path / "mnt")
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as daemon:
            try:
                assert receiver.recv(100) == b"READY=1"
                assert (tmp_path / "mnt" / "large").exists()
            finally:
                daemon.terminate()
        assert daemon.returncode == 0

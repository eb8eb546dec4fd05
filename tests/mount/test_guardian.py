"""A killed daemon leaves nobody hanging, also if its connection does not close with it."""

import ctypes
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dieselfs.fuse import guardian_process
from dieselfs.fuse.guardian import start_guardian
from dieselfs.fuse.mount_table import entry_at
from tests.mount.mounting import PATIENCE_S, eventually, is_alive, needs_fuse

pytestmark = [
    needs_fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can clear away what hangs"),
]
LIBC = ctypes.CDLL(None)
MNT_FORCE, MNT_DETACH = 1, 2
PROGRAM = Path(guardian_process.__file__)
STORED = 200
DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
READ = f"""
import os, sys
try:
    read = os.pread(os.open(sys.argv[1], os.O_RDONLY), 10, 0)
except OSError as error:
    sys.exit(error.errno)
sys.exit({STORED} if read == b"x" * 10 else 1)
"""


@pytest.fixture
def kind() -> None:
    """These mounts are of their own kind: once is enough."""


def is_stuck(task: Path) -> bool:
    """It sleeps and no ordinary signal wakes it: it waits for a page."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"


@dataclass
class Reader:
    """A process that reads the file that hangs; a thread of ours could not be ended."""

    path: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", READ, str(self.path)])

    def is_reading(self) -> bool:
        return is_stuck(Path(f"/proc/{self.process.pid}"))

    def error(self, timeout_s: float) -> int | None:
        """The errno that the read ended with, or `STORED`; None if it has not ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


@dataclass
class HangingMount:
    path: Path
    daemon: subprocess.Popen[bytes]
    holder: int
    guardian: int
    log_file: Path
    readers: list[Reader] = field(default_factory=list)

    def hung_reader(self) -> Reader:
        reader = Reader(self.path / "hang")
        self.readers.append(reader)
        eventually(reader.is_reading, "a read that hangs")
        return reader

    def has_stuck_thread(self) -> bool:
        return any(map(is_stuck, Path(f"/proc/{self.daemon.pid}/task").iterdir()))

    def clear_away(self) -> None:
        """Whatever hangs."""
        if self.holder:
            with suppress(ProcessLookupError):
                os.kill(self.holder, signal.SIGKILL)
        self.daemon.kill()
        for reader in self.readers:
            reader.process.kill()
        if entry_at(self.path) is not None:
            LIBC.umount2(os.fsencode(self.path), MNT_FORCE)  # aborts the connection
            LIBC.umount2(os.fsencode(self.path), MNT_DETACH)
        self.daemon.communicate(timeout=PATIENCE_S)
        for reader in self.readers:
            reader.process.wait(PATIENCE_S)


def unmount_lazily(mountpoint: Path) -> None:
    subprocess.run(["umount", "--lazy", mountpoint], check=True)


@contextmanager
def hanging_mount(folder: Path, *options: str) -> Iterator[HangingMount]:
    mountpoint, log_file = folder / "mnt", folder / "daemon.log"
    mountpoint.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.mount.hanging_daemon", str(mountpoint), *options]
    with log_file.open("wb") as log:
        daemon = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    assert daemon.stdout is not None
    holder, guardian = map(int, daemon.stdout.readline().split())
    mount = HangingMount(mountpoint, daemon, holder, guardian, log_file)
    try:
        yield mount
    finally:
        mount.clear_away()


@pytest.mark.parametrize("stuck", ["thread", "process"])
def test_without_a_guardian_a_reader_hangs(tmp_path: Path, stuck: str) -> None:
    with hanging_mount(tmp_path, "--stuck", stuck) as mount:
        reader = mount.hung_reader()
        eventually(lambda: stuck == "process" or mount.has_stuck_thread(), "a stuck thread")
        mount.daemon.kill()
        assert reader.error(timeout_s=3.0) is None


@pytest.mark.parametrize("stuck", ["thread", "process"])
def test_the_guardian_aborts_the_connection_of_a_killed_daemon(tmp_path: Path, stuck: str) -> None:
    with hanging_mount(tmp_path, "--stuck", stuck, "--guarded") as mount:
        readers = [mount.hung_reader() for _ in range(3)]
        eventually(lambda: stuck == "process" or mount.has_stuck_thread(), "a stuck thread")
        mount.daemon.kill()
        ends = [reader.error(timeout_s=2.0) for reader in readers]
        # The waiting thread may get the page as the READ fails, and then a reader finds there what it stored.
        assert set(ends) <= ({STORED, *DEAD} if stuck == "thread" else {*DEAD})
        with pytest.raises(OSError) as raised:
            os.stat(mount.path / "another")
        assert raised.value.errno in DEAD
        assert mount.daemon.wait(PATIENCE_S) == -signal.SIGKILL
        eventually(lambda: not is_alive(mount.guardian), "the guardian ends with its work")
        assert f"of daemon {mount.daemon.pid} is aborted" in mount.log_file.read_text()


def test_an_orderly_end_aborts_nothing_and_leaves_no_guardian(tmp_path: Path) -> None:
    with hanging_mount(tmp_path, "--guarded") as mount:
        assert is_alive(mount.guardian)
        mount.daemon.communicate(timeout=PATIENCE_S)  # the end of its stdin
        assert mount.daemon.returncode == 0
        assert not is_alive(mount.guardian)
        assert mount.log_file.read_text() == ""


def test_an_orderly_end_with_a_stuck_thread_needs_an_abort(tmp_path: Path) -> None:
    with hanging_mount(tmp_path, "--stuck", "thread", "--guarded", "--abort") as mount:
        reader = mount.hung_reader()
        eventually(mount.has_stuck_thread, "a stuck thread")
        mount.daemon.communicate(timeout=PATIENCE_S)
        assert mount.daemon.returncode == 0
        assert reader.error(timeout_s=2.0) in (STORED, *DEAD)
        assert not is_alive(mount.guardian)
        unmount_lazily(mount.path)
        assert entry_at(mount.path) is None


def test_a_later_mount_with_the_same_device_number_is_left_alone(tmp_path: Path) -> None:
    with hanging_mount(tmp_path / "first", "--guarded") as first:
        entry = entry_at(first.path)
        assert entry is not None
        unmount_lazily(first.path)  # its daemon lives on
        with hanging_mount(tmp_path / "second") as second:
            later = entry_at(second.path)
            assert later is not None
            if later.device != entry.device:
                pytest.skip("another file system was mounted in between")
            first.daemon.kill()
            eventually(lambda: not is_alive(first.guardian), "the guardian ends")
            assert "is aborted" in first.log_file.read_text()
            with pytest.raises(FileNotFoundError):
                os.stat(second.path / "absent")


def test_what_a_terminal_sends_does_not_end_a_guardian(tmp_path: Path) -> None:
    with hanging_mount(tmp_path, "--guarded") as mount:
        assert os.getsid(mount.guardian) == mount.guardian
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            os.kill(mount.guardian, number)
        reader = mount.hung_reader()
        assert reader.error(timeout_s=0.5) is None, "the signal of death came from somebody else"
        mount.daemon.kill()
        assert reader.error(timeout_s=2.0) in DEAD


def test_a_guardian_is_small_and_holds_nothing(tmp_path: Path) -> None:
    with hanging_mount(tmp_path, "--guarded") as mount:
        process = Path(f"/proc/{mount.guardian}")
        [line] = [line for line in (process / "status").read_text().splitlines() if "VmRSS" in line]
        assert int(line.split()[1]) < 12 << 10, line
        expected = ["/dev/null", *[os.fspath(mount.log_file)] * 2, "/abort"]
        eventually(lambda: sorted(expected) == sorted(open_files(process)), "nothing else is open")
        assert os.readlink(process / "cwd") == "/"
        assert (process / "ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino


def open_files(process: Path) -> list[str]:
    """What its descriptors are of; the folder of an `abort` file is left out."""
    links = [os.readlink(fd) for fd in (process / "fd").iterdir()]
    return ["/abort" if link.endswith("/abort") else link for link in links]


def test_a_mount_that_cannot_be_guarded_is_said_and_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with start_guardian(tmp_path) as absent:
        assert not absent.is_on_guard
    assert caplog.messages == [
        f"no guardian: readers of {tmp_path} may hang if this is killed: nothing is mounted at {tmp_path}"
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["1", "1"], "the daemon is gone"),  # not its parent
        ([str(os.getpid()), "no-such-connection"], "No such file"),
    ],
)
def test_the_process_says_why_it_cannot_guard(arguments: list[str], reason: str) -> None:
    command = [sys.executable, "-I", "-S", str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, reason in done.stdout, done.stderr) == (1, True, "")


def test_an_ordinary_user_needs_the_systems_fusectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian_process, "_FUSECTL", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        FileNotFoundError, match=r"7/abort: No such file .* \(is fusectl mounted\?\)"
    ):
        guardian_process._open_control("7", "abort")
    (tmp_path / "7").mkdir()
    (tmp_path / "7/abort").write_bytes(b"")
    os.close(guardian_process._open_control("7", "abort"))

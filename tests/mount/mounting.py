"""Mounts for tests: started as a user's are, and surely gone afterwards.

The environment variable `KIND` names their front, and `start` fails if they get another one:
`erofs`, the default for root, `erofs-loop` or `fuse`. The fixture `kind` runs tests over several of
them.
"""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dieselfs.fuse.mounts.mount_table import MountInfo, MountState, entry_at, mounts
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.supervision.daemonize import start_in_background
from tests.eventually import PATIENCE_S, eventually
from tests.mount.packing import PackedDataset

KIND = "DIESELFS_TEST_FRONT"

both_fronts = pytest.mark.parametrize("kind", ["erofs", "fuse"], indirect=True)

needs_fuse = pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse"
)


def walked(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk`, without the control directory, which EROFS lists as something that is no
    directory."""
    for at, directories, files in os.walk(top):
        yield Path(at), directories, [name for name in files if name != ".dieselfs"]


def names_in(directory: Path | int) -> list[str]:
    """`os.listdir`, without the control directory."""
    return [name for name in os.listdir(directory) if name != ".dieselfs"]


def state_of(pid: int) -> str:
    """The letter of proc(5); X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


def listed(mountpoint: Path) -> MountInfo:
    """Return the entry of a mount in the list of mounts. On a busy machine its answer may come too
    late for a list."""

    def entry() -> MountInfo | None:
        [found] = [info for info in mounts() if info.mountpoint == mountpoint]
        return None if found.state is MountState.HUNG else found

    found = eventually(entry, f"an answer of {mountpoint}")
    assert found is not None
    return found


started: list["Mount"] = []
"""All mounts of this process, whose logs are shown when a test fails."""


@dataclass(frozen=True)
class Mount:
    path: Path
    pid: int
    log_file: Path
    faults: Path
    next: Path
    """Names the snapshot file that a refresh takes."""

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def statistics(self) -> dict[str, Any]:
        """What the mount counts."""
        return self.control("stats.json")

    @property
    def server_pid(self) -> int:
        """The process that serves now; after an upgrade its former server may still answer."""
        found: list[int] = []

        def answered() -> bool:
            try:
                found.append(self.control("dataset.json")["server_pid"])
            except OSError as error:
                if error.errno != errno.ESTALE:  # one server has opened it, and the next one reads
                    raise
            return bool(found)

        eventually(answered, "a document that one server answers for")
        return found[0]

    def servers(self) -> list[int]:
        """The processes that serve or have served and are not gone yet; also those whose supervisor
        was killed."""
        mark = os.fsencode(self.faults)
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in words and int(process.name) not in (self.pid, os.getpid()):
                found.append(int(process.name))
        return found

    def kill_server(self) -> int:
        """SIGKILL; the process that serves afterwards."""
        killed = self.server_pid
        with suppress(ProcessLookupError):  # after an upgrade the server before answers to its end
            os.kill(killed, signal.SIGKILL)
        return self.await_server_after(killed)

    def await_server_after(self, before: int) -> int:
        def serving() -> int:
            try:
                return self.server_pid
            except (OSError, ValueError):  # while one follows the other
                return before

        found = before

        def is_another() -> bool:
            nonlocal found
            found = serving()
            return found != before

        eventually(is_another, "another server")
        return found

    def kill(self) -> None:
        """SIGKILL of the supervisor, then of its servers: nobody serves any more."""
        servers = self.servers()
        for pid in (self.pid, *servers):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, (self.pid, *servers))), "the end of all servers")

    def fail_with(self, fault: str) -> None:
        """Let reads that reach the daemon fail from now on; '' ends it."""
        replacement = self.faults.with_suffix(".new")
        replacement.write_text(fault)
        replacement.rename(self.faults)

    def control(self, name: str) -> dict[str, Any]:
        """A document of the control directory."""
        document: dict[str, Any] = json.loads((self.path / ".dieselfs" / name).read_text())
        return document

    def attempt_refresh(self, snapshot: Path) -> str | None:
        """Tell the daemon to take a snapshot, and wait until it has, or until it says why not."""
        self.next.write_text(str(snapshot))
        attempts = self._refreshes()["attempts"]
        os.kill(self.pid, signal.SIGUSR1)
        eventually(lambda: self._refreshes()["attempts"] > attempts, "the end of a refresh")
        error: str | None = self._refreshes()["error"]
        return error

    def _refreshes(self) -> dict[str, Any]:
        """`refresh.json`; while one server follows another there may be none for a moment."""
        found: list[dict[str, Any]] = []

        def read() -> bool:
            with suppress(OSError, ValueError):
                found.append(self.control("refresh.json"))
            return bool(found)

        eventually(read, "an answer")
        return found[0]

    def refresh(self, snapshot: Path) -> None:
        assert self.attempt_refresh(snapshot) is None

    def wait_until_ended(self) -> None:
        eventually(lambda: not is_alive(self.pid), f"end of daemon {self.pid}")


def kind_of_mount() -> str:
    return os.environ.get(KIND) or ("erofs" if os.geteuid() == 0 else "fuse")


def daemon_command(packed: PackedDataset, mountpoint: Path, *options: str) -> list[str]:
    arguments = [str(packed.snapshot), str(packed.store), str(mountpoint), *options]
    front = [] if "--front" in options else ["--front", kind_of_mount()]
    return [sys.executable, "-m", "tests.mount.daemon", *arguments, *front]


def start(packed: PackedDataset, folder: Path, *options: str) -> Mount:
    mountpoint = folder / "mnt"
    mountpoint.mkdir(parents=True, exist_ok=True)
    faults, startup = folder / "faults", folder / "startup"
    for file in (faults, startup):
        file.write_text("")
    log_file = folder / "daemon.log"
    following = folder / "next"
    files = ["--faults", str(faults), "--startup", str(startup), "--next", str(following)]
    command = daemon_command(packed, mountpoint, *files, *options)
    pid = start_in_background(command, mountpoint, log_file=log_file, timeout_s=PATIENCE_S)
    mount = Mount(mountpoint, pid, log_file, faults, following)
    started.append(mount)
    found = mount.statistics()["front"]
    if "--front" not in options and found["kind"] != kind_of_mount():
        end(mount)
        pytest.fail(f"{kind_of_mount()} was wanted as the front, not {found}")
    return mount


@contextmanager
def mounted(packed: PackedDataset, folder: Path, *options: str) -> Iterator[Mount]:
    mount = start(packed, folder, *options)
    try:
        yield mount
    finally:
        end(mount)


def end(mount: Mount) -> None:
    """Whatever has become of it: its processes are gone then, and the mountpoint is free."""
    servers = mount.servers()
    for pid in (mount.pid, *servers):
        with suppress(ProcessLookupError):  # a test that failed may have left it stopped
            os.kill(pid, signal.SIGCONT)
    if is_alive(mount.pid):
        os.kill(mount.pid, signal.SIGTERM)
        mount.wait_until_ended()
    while entry_at(mount.path) is not None:
        unmount(mount.path, lazy=True)
    eventually(lambda: not any(map(is_alive, servers)), f"end of servers {servers}")

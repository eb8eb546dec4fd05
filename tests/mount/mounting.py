"""Mounts for tests: started as a user's are, and surely gone afterwards.

The environment variable `KIND` says how they are made, and `start` fails if they are not: `fast`, the default, or without the
fast path, for one of the reasons there are. The fixture `kind` runs the tests with the first two.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dieselfs.fuse.background import start_in_background
from dieselfs.fuse.mount_table import entry_at
from dieselfs.fuse.mountpoint import unmount
from tests.mount.packing import PackedDataset

KIND = "DIESELFS_TEST_MOUNT"
BEFORE_THE_DAEMON = {
    "fast": "",
    "plain": "sys.argv.append('--plain')",
    "unbuilt": "sys.modules['dieselfs.fuse._fast_path'] = None",  # imports of it fail
    "too late": "import pyfuse3",
}
PATIENCE_S = 60.0  # machines that run tests stall for many seconds

needs_fuse = pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse"
)


def eventually(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


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
        """What the mount counts. Asking makes a few requests itself."""
        return self.control("stats.json")

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
        attempts = self.control("refresh.json")["attempts"]
        os.kill(self.pid, signal.SIGUSR1)
        eventually(
            lambda: self.control("refresh.json")["attempts"] > attempts, "the end of a refresh"
        )
        error: str | None = self.control("refresh.json")["error"]
        return error

    def refresh(self, snapshot: Path) -> None:
        assert self.attempt_refresh(snapshot) is None

    def wait_until_ended(self) -> None:
        eventually(lambda: not is_alive(self.pid), f"end of daemon {self.pid}")


def kind_of_mount() -> str:
    return os.environ.get(KIND, "fast")


def daemon_command(packed: PackedDataset, mountpoint: Path, *options: str) -> list[str]:
    program = f"""
import runpy, sys
{BEFORE_THE_DAEMON[kind_of_mount()]}
runpy.run_module("tests.mount.daemon", run_name="__main__", alter_sys=True)
"""
    arguments = [str(packed.snapshot), str(packed.store), str(mountpoint), *options]
    return [sys.executable, "-c", program, *arguments]


def start(packed: PackedDataset, folder: Path, *options: str) -> Mount:
    mountpoint = folder / "mnt"
    mountpoint.mkdir(parents=True, exist_ok=True)
    faults = folder / "faults"
    faults.write_text("")
    log_file = folder / "daemon.log"
    following = folder / "next"
    files = ["--faults", str(faults), "--next", str(following)]
    command = daemon_command(packed, mountpoint, *files, *options)
    pid = start_in_background(command, mountpoint, log_file=log_file, timeout_s=PATIENCE_S)
    mount = Mount(mountpoint, pid, log_file, faults, following)
    found = mount.statistics()["fast_path"]
    if found["active"] != (kind_of_mount() == "fast"):
        end(mount)
        pytest.fail(f"a {kind_of_mount()} mount was wanted, but its fast path is {found}")
    return mount


@contextmanager
def mounted(packed: PackedDataset, folder: Path, *options: str) -> Iterator[Mount]:
    mount = start(packed, folder, *options)
    try:
        yield mount
    finally:
        end(mount)


def end(mount: Mount) -> None:
    if is_alive(mount.pid):
        os.kill(mount.pid, signal.SIGTERM)
        mount.wait_until_ended()
    while entry_at(mount.path) is not None:
        unmount(mount.path, lazy=True)

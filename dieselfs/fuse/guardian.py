"""The guardian of a mount: a small process that aborts the FUSE connection when the daemon has been killed.

A thread of the daemon that stores into a page of the page cache waits, unkillably, while that page waits for a READ. If the
daemon is killed (SIGKILL, out of memory) nobody answers that READ any more: the thread never ends, therefore the
process never goes away, its descriptor of /dev/fuse stays open, the kernel does not see that the connection is dead, and
whoever reads from the mount hangs for ever. Aborting the connection by hand (fusectl) ends all of it, and readers
get the error that they get from any dead mount.

How it knows: the kernel sends a signal of our choice to the children of a thread that dies (PR_SET_PDEATHSIG). The
guardian is started by the main thread, which stores nothing and dies even if another thread does not. Neither a pipe
nor a pidfd could tell: a process with a stuck thread keeps its descriptors, and has not ended. `getppid` closes the
gap before the kernel was asked; the daemon stores nothing before it knows that the guardian is on guard.

What it aborts: exactly this connection. Device numbers are used again, so the `abort` file is opened at the
start, while the mount is known to be there. A descriptor of it belongs to that one connection for good: once the
connection has ended, however that came about, writing to it does nothing, also if another mount has got the number.
So the orderly end needs no protocol either: the daemon ends the guardian, and should it fail to, no harm is done.

What it needs: fusectl at /sys/fs/fuse/connections, as systemd mounts it, where the file belongs to the mounting
user; or else root (CAP_SYS_ADMIN) and Linux 5.2, to mount one that has no place in any namespace. (A mount namespace
of its own would hold copies of all mounts, ours too, and with them what others want to unmount.) A guardian that is
killed together with the daemon, as by `systemctl kill -s KILL`, is of no help. It costs 10 MB of memory, most of it
Python's code, which is shared with the daemon.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from dieselfs.fuse.mount_table import entry_at, mount_entries

log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("guardian_process.py")
DEATH_SIGNAL: Final = signal.SIGUSR1
"""The guardian heeds it when it comes from the daemon, dying (by the kernel's hand) or not."""
_ARMED: Final = "armed"
_START_TIMEOUT_S: Final = 10.0  # it takes 30 ms on an idle machine
_ABORT_TIMEOUT_S: Final = 0.5


@dataclass(slots=True)
class Guardian:
    """A mount's guardian, or the absence of one. Close it after the mount has ended."""

    _process: subprocess.Popen[bytes] | None = None

    @property
    def is_on_guard(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def abort(self) -> None:
        """Let it abort the connection now, as if this process had died; it ends with that.

        For an end of the mount with a READ that stays unanswered and a thread that waits for its page: unmounting waits for
        that thread too (`fuse_kill_sb_anon`), so that without an abort both would wait for ever.
        libfuse leaves an aborted connection mounted: detach it afterwards (`mountpoint.unmount(…, lazy=True)`).
        """
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(DEATH_SIGNAL)
            try:
                self._process.wait(_ABORT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                log.warning("the guardian %d does not abort the connection", self._process.pid)

    def close(self) -> None:
        """End it; it aborts nothing. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Guardian:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def start_guardian(mountpoint: Path) -> Guardian:
    """Guard what is mounted on top at the resolved `mountpoint`, until this process dies or closes the guardian.

    Call it from the main thread, after the mount was made and before anything is stored. Makes no request to the mount, so
    that it may be called before requests are answered. Never raises: without a guardian the mount works, and the log says so.
    """
    assert threading.current_thread() is threading.main_thread(), "the kernel watches this thread"
    guardian = Guardian()
    try:
        entry = entry_at(mountpoint)
        if entry is None:
            raise _NoGuardian(f"nothing is mounted at {mountpoint}")
        _, connection = entry.device
        guardian = _started([str(os.getpid()), str(connection)])
        if entry not in mount_entries():  # then the number may be another connection's by now
            raise _NoGuardian("the mount has ended")
    except (_NoGuardian, OSError) as error:
        guardian.close()
        log.info("no guardian: readers of %s may hang if this is killed: %s", mountpoint, error)
    return guardian


class _NoGuardian(Exception):
    """Why there is none."""


def _started(arguments: Sequence[str]) -> Guardian:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", os.fspath(_PROGRAM), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the daemon
    )
    assert process.stdout is not None
    with process.stdout as output:
        report = _first_line(output)
    if report != _ARMED:
        process.kill()
        process.wait()
        raise _NoGuardian(report)
    return Guardian(process)


def _first_line(output: IO[bytes]) -> str:
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    if not waiting.poll(_START_TIMEOUT_S * 1000):
        return f"it did not start within {_START_TIMEOUT_S:g} s"
    return output.readline().decode(errors="replace").strip() or "it ended without a word"

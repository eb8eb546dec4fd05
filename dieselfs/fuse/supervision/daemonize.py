"""Start a mount's daemon and return when the mount answers.

The daemon is a fresh process (fork and exec), not a fork of the caller: stores and databases hold
threads and maps that do not survive a fork.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import IO, Final
from urllib.parse import quote

from dieselfs.config import state_folder
from dieselfs.errors import MountError
from dieselfs.fuse.supervision.readiness import READY, VARIABLE

_END_TIMEOUT_S: Final = 10.0
_LARGE_LOG_BYTES: Final = 16 << 20


LOG_VARIABLE: Final = "DIESELFS_LOG_FOLDER"


def default_log_file(mountpoint: Path) -> Path:
    """Return the log file of the daemon of `mountpoint`.

    It is in the folder that DIESELFS_LOG_FOLDER names, or else in /var/log/dieselfs for root and in
    the user's state folder for others.
    """
    if named := os.environ.get(LOG_VARIABLE):
        folder = Path(named)
    elif os.geteuid() == 0:
        folder = Path("/var/log/dieselfs")
    else:
        folder = state_folder()
    return folder / f"mount{quote(os.path.abspath(mountpoint), safe='').replace('%2F', '-')}.log"


def start_in_background(
    command: Sequence[str], mountpoint: Path, *, log_file: Path, timeout_s: float = 60.0
) -> int:
    """Run `command`, which mounts at `mountpoint` in the foreground.

    Returns the daemon's process id.

    The daemon gets a session of its own and writes to `log_file`. Raises `MountError` with the last
    words of the daemon if it ends, or with a time-out if it does not answer within `timeout_s`;
    then it is terminated.
    """
    with _listening() as (receiver, address), _opened_log(log_file) as log_output:
        log_start = log_output.tell()
        daemon = _started(command, log_output, address)
        try:
            if not _becomes_ready(daemon, receiver, monotonic() + timeout_s):
                what = _failure(log_file, log_start, timeout_s, ended=daemon.poll() is not None)
                raise MountError(what, f"see its log: {log_file}")
            os.stat(mountpoint)
        except BaseException:
            _end(daemon)
            raise
    # A thread must wait for the daemon, or it stays as a zombie while the caller lives.
    threading.Thread(target=daemon.wait, daemon=True, name=f"reap mount {daemon.pid}").start()
    return daemon.pid


def _started(
    command: Sequence[str], log_output: IO[bytes], address: str
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_output,
            stderr=log_output,
            start_new_session=True,
            env={**os.environ, VARIABLE: address},
        )
    except OSError as error:
        raise MountError(f"cannot start {command[0]}: {error.strerror}") from error


@contextmanager
def _listening() -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket for the daemon's READY=1, and its address."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-") as folder:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            address = os.path.join(folder, "ready")
            receiver.bind(address)
            yield receiver, address


def _opened_log(log_file: Path) -> IO[bytes]:
    try:
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log_file.exists() and log_file.stat().st_size > _LARGE_LOG_BYTES:
            log_file.rename(log_file.with_suffix(".log.1"))
        return open(log_file, "ab", opener=_private)
    except OSError as error:
        raise MountError(f"cannot write the log {log_file}: {error.strerror}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _becomes_ready(
    daemon: subprocess.Popen[bytes], receiver: socket.socket, deadline: float
) -> bool:
    """Wait for READY=1; False if the daemon ends or the deadline passes before."""
    ended = os.pidfd_open(daemon.pid)
    try:
        waiting = select.poll()
        waiting.register(receiver, select.POLLIN)
        waiting.register(ended, select.POLLIN)
        while True:
            events = dict(waiting.poll(max(0.0, deadline - monotonic()) * 1000))
            if receiver.fileno() not in events:
                return False
            if READY in receiver.recv(4096).split(b"\n"):
                return True
    finally:
        os.close(ended)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _failure(log_file: Path, start: int, timeout_s: float, *, ended: bool) -> str:
    """Return the reason: the daemon's last words since `start`, without the program's name."""
    with log_file.open("rb") as reading:
        reading.seek(start)
        lines = reading.read().decode(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("dlcmd: ").removeprefix("error: ") if lines else ""
    if ended:
        return last or "the mount's daemon ended without a message"
    what = f"the mount did not answer within {timeout_s:g} s"
    return f"{what}; the last line of its log: {last}" if last else what

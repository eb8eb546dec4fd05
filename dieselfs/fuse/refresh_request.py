"""Ask the supervisor of a running mount for a newer snapshot, or for the installed version, and wait for the outcome.

The supervisor is told by a signal; the mount answers in its control directory. `refresh.json` says when it has tried, and
`dataset.json` what it shows and which process serves it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from dieselfs.errors import MountError
from dieselfs.fuse.control_names import CONTROL_NAME, DATASET_NAME, REFRESH_NAME
from dieselfs.fuse.mount_table import MountInfo

_POLL_MS: Final = 50
_ANSWER_TIMEOUT_S: Final = 10.0


def request_refresh(mount: MountInfo, generation: int, timeout_s: float = 600.0) -> str:
    """Make a mount that serves show a snapshot of at least this generation, which its daemon must be able to find.

    Returns the id of what it shows then. Raises `MountError` if the daemon refuses, ends, or takes too long.
    """
    deadline = monotonic() + timeout_s
    with _opened_daemon(mount) as daemon:
        status = _document(mount, REFRESH_NAME)
        # One that is under way may have looked before there was anything to find.
        awaited = status["attempts"] + (2 if status["running"] else 1)
        signal.pidfd_send_signal(daemon, signal.SIGUSR1)
        while monotonic() < deadline:
            status = _document(mount, REFRESH_NAME)
            shown = _document(mount, DATASET_NAME)
            if shown["generation"] >= generation:
                return str(shown["snapshot"])
            if status["attempts"] >= awaited:
                raise MountError(
                    f"{mount.mountpoint} was not refreshed: {status['error'] or 'its daemon finds no newer snapshot'}",
                    f"it still shows {mount.dataset}@{shown['snapshot']}; see its log",
                )
            _wait(daemon, mount.mountpoint)
    raise MountError(f"{mount.mountpoint} was not refreshed within {timeout_s:g} s", "see its log")


def request_upgrade(mount: MountInfo, timeout_s: float = 60.0) -> int:
    """Make the installed version serve a mount; the id of the process that does. Raises `MountError`."""
    deadline = monotonic() + timeout_s
    with _opened_daemon(mount) as daemon:
        before = _document(mount, DATASET_NAME)["server_pid"]
        signal.pidfd_send_signal(daemon, signal.SIGUSR2)
        while monotonic() < deadline:
            _wait(daemon, mount.mountpoint)
            serving: int = _document(mount, DATASET_NAME)["server_pid"]
            if serving != before:
                return serving
    raise MountError(f"{mount.mountpoint} was not upgraded within {timeout_s:g} s", "see its log")


@contextmanager
def _opened_daemon(mount: MountInfo) -> Iterator[int]:
    """A descriptor of the supervisor's process, after a look whether it is one: the number is only what the mount says,
    and a process that knows no SIGUSR1 dies of it."""
    if mount.pid == (mount.details or {}).get("server_pid"):
        raise MountError(
            f"the supervisor of {mount.mountpoint} was killed: the mount stays as it is",
            f"mount it again: dlcmd umount {mount.mountpoint}",
        )
    try:
        daemon = os.pidfd_open(mount.pid or 0)
    except OSError as error:
        raise _no_daemon(mount, error) from error
    try:
        if not _holds_fuse_device(Path("/proc", str(mount.pid), "fd")):
            raise _no_daemon(mount, None)
        yield daemon
    except PermissionError as error:
        raise _no_daemon(mount, error) from error
    except ProcessLookupError as error:
        raise _ended(mount.mountpoint) from error
    finally:
        os.close(daemon)


def _holds_fuse_device(descriptors: Path) -> bool:
    return any(os.readlink(descriptor) == "/dev/fuse" for descriptor in descriptors.iterdir())


def _no_daemon(mount: MountInfo, error: OSError | None) -> MountError:
    reason = error.strerror if error else "it is another program"
    return MountError(
        f"process {mount.pid}, which serves {mount.mountpoint}, cannot be told: {reason}",
        "refresh the mount as the user, and in the container, that made it",
    )


def _document(mount: MountInfo, name: bytes) -> dict[str, Any]:
    """A file of the mount's control directory, read by a process that can be killed should the mount hang.

    While one server follows another there may be no control directory for a moment.
    """
    path = mount.mountpoint / os.fsdecode(CONTROL_NAME) / os.fsdecode(name)
    deadline = monotonic() + _ANSWER_TIMEOUT_S
    while True:
        try:
            done = subprocess.run(
                ["cat", "--", path],
                capture_output=True,
                check=True,
                timeout=max(0.0, deadline - monotonic()),
            )
            document: dict[str, Any] = json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError) as error:
            if isinstance(error, subprocess.TimeoutExpired) or monotonic() >= deadline:
                raise MountError(
                    f"the mount at {mount.mountpoint} does not answer", "see `dlcmd mounts`"
                ) from error
            sleep(_POLL_MS / 1000)
        else:
            return document


def _wait(daemon: int, mountpoint: Path) -> None:
    """A moment, or until the daemon ends, which is an error."""
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    if waiting.poll(_POLL_MS):
        raise _ended(mountpoint)


def _ended(mountpoint: Path) -> MountError:
    return MountError(f"the daemon of {mountpoint} ended while it was refreshed", "see its log")

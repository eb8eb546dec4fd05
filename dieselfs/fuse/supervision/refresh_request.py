"""Requests to a running mount's supervisor: show a newer snapshot, or run the installed version.

A signal is the request; the mount answers in its control directory. `refresh.json` says when it has
tried, and `dataset.json` what it shows and which process serves it. The caller waits for the
outcome.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from time import monotonic, sleep
from typing import Any, Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.control_names import DATASET_NAME, REFRESH_NAME
from dieselfs.fuse.mounts.mount_table import MountInfo, read_document

_POLL_MS: Final = 50
_ANSWER_TIMEOUT_S: Final = 10.0
_REFRESH_TIMEOUT_S: Final = 600.0
_UPGRADE_TIMEOUT_S: Final = 60.0


def request_refresh(mount: MountInfo, generation: int) -> str:
    """Make a serving mount show a snapshot of at least this generation; return its id.

    The daemon must be able to find the snapshot. Raises `MountError` if the daemon refuses, ends,
    or takes too long.
    """
    deadline = monotonic() + _REFRESH_TIMEOUT_S
    with _opened_daemon(mount) as daemon:
        status = _document(mount, REFRESH_NAME)
        # An attempt that is under way may have started before there was anything to find.
        awaited = status["attempts"] + (2 if status["running"] else 1)
        signal.pidfd_send_signal(daemon, signal.SIGUSR1)
        while monotonic() < deadline:
            status = _document(mount, REFRESH_NAME)
            shown = _document(mount, DATASET_NAME)
            if shown["generation"] >= generation:
                return str(shown["snapshot"])
            if status["attempts"] >= awaited:
                raise MountError(
                    f"{mount.mountpoint} was not refreshed: "
                    f"{status['error'] or 'its daemon finds no newer snapshot'}",
                    f"it still shows {mount.dataset}@{shown['snapshot']}; see its log",
                )
            _wait(daemon, mount.mountpoint)
    raise MountError(
        f"{mount.mountpoint} was not refreshed within {_REFRESH_TIMEOUT_S:g} s", "see its log"
    )


def request_upgrade(mount: MountInfo) -> int:
    """Make the installed version serve a mount; return the id of the process that does.

    Raises `MountError`.
    """
    deadline = monotonic() + _UPGRADE_TIMEOUT_S
    with _opened_daemon(mount) as daemon:
        before = _document(mount, DATASET_NAME)["server_pid"]
        signal.pidfd_send_signal(daemon, signal.SIGUSR2)
        while monotonic() < deadline:
            _wait(daemon, mount.mountpoint)
            serving: int = _document(mount, DATASET_NAME)["server_pid"]
            if serving != before:
                return serving
    raise MountError(
        f"{mount.mountpoint} was not upgraded within {_UPGRADE_TIMEOUT_S:g} s", "see its log"
    )


@contextmanager
def _opened_daemon(mount: MountInfo) -> Iterator[int]:
    """Yield a descriptor of the supervisor's process, after a check that it is one.

    Only the mount gives the number, and a process that does not handle SIGUSR1 dies of it.
    """
    if mount.pid is not None and mount.pid == mount.details.get("server_pid"):
        raise MountError(
            f"the supervisor of {mount.mountpoint} was killed: the mount stays as it is",
            f"mount it again, after dlcmd umount {quote(os.fspath(mount.mountpoint))}",
        )
    try:
        daemon = os.pidfd_open(mount.pid or 0)
    except OSError as error:
        raise _no_daemon(mount, error.strerror) from error
    try:
        if not _holds_fuse_device(Path("/proc", str(mount.pid), "fd")):
            raise _no_daemon(mount, "it is another program")
        yield daemon
    except PermissionError as error:
        raise _no_daemon(mount, error.strerror) from error
    except ProcessLookupError as error:
        raise _ended(mount.mountpoint) from error
    finally:
        os.close(daemon)


def _holds_fuse_device(descriptors: Path) -> bool:
    """Return whether a process has /dev/fuse open. Raises `ProcessLookupError` if it has gone."""
    try:
        links = list(descriptors.iterdir())
    except FileNotFoundError as error:
        raise ProcessLookupError(*error.args) from error
    for link in links:
        with suppress(FileNotFoundError):  # the process closes descriptors meanwhile
            if os.readlink(link) == "/dev/fuse":
                return True
    return False


def _no_daemon(mount: MountInfo, reason: str | None) -> MountError:
    return MountError(
        f"cannot signal process {mount.pid}, which serves {mount.mountpoint}: {reason}",
        "refresh the mount as the user, and in the container, that made it",
    )


def _document(mount: MountInfo, name: bytes) -> Mapping[str, Any]:
    """Return a document of the mount.

    While one server replaces another there may be none for a moment.
    """
    deadline = monotonic() + _ANSWER_TIMEOUT_S
    while True:
        _, document = read_document(mount.mountpoint, name, deadline - monotonic())
        if document is not None:
            return document
        if monotonic() >= deadline:
            raise MountError(
                f"the mount at {mount.mountpoint} does not answer", "see `dlcmd mounts`"
            )
        sleep(_POLL_MS / 1000)


def _wait(daemon: int, mountpoint: Path) -> None:
    """Wait for a moment, or until the daemon ends, which is an error."""
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    if waiting.poll(_POLL_MS):
        raise _ended(mountpoint)


def _ended(mountpoint: Path) -> MountError:
    return MountError(f"the daemon of {mountpoint} ended while it was refreshed", "see its log")

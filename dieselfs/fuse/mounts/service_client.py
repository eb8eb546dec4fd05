"""The client of `dlcmd mountd`: an ordinary user's process has EROFS mounted over its own blob.

The service builds the image from the snapshot and mounts it; this process serves the blob through
the /dev/fuse descriptor that it gets. It must do so before the mount is complete, since the kernel
opens the blob while it mounts: therefore `serve` is called in the middle of a request.

Each request has a connection of its own. A failure is a `MountError`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.service_messages import BadServiceMessage, receive, send

SERVICE_SOCKET: Final = Path("/run/dieselfs/mountd.sock")
SERVICE_VARIABLE: Final = "DIESELFS_MOUNTD"
TIMEOUT_S: Final = 180.0
"""Longer than the service takes at most, which answers with an error by then."""
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def service_socket() -> Path:
    """Return the path of the mount service's socket: DIESELFS_MOUNTD, or the usual one."""
    return Path(os.environ.get(SERVICE_VARIABLE) or SERVICE_SOCKET)


def mount(
    snapshot: Path,
    mountpoint: Path,
    private: bool,
    direct_io: bool,
    serve: Callable[[int], None],
    *,
    replaces: bool = False,
) -> list[int]:
    """Mount a snapshot at an empty directory of this user; return O_PATH descriptors of its blobs.

    The descriptors are the caller's. `serve` is called once, before this returns, with a /dev/fuse
    descriptor that is the caller's from then on; it starts a server of the blobs and returns at
    once. With `private`, only this user and root pass the mount's root directory. With `replaces`,
    the snapshot replaces this user's mount there; open files keep the older one. The older control
    directory goes with it; `attach_control` makes a new one.
    """
    request = "replace" if replaces else "mount"
    message = {"request": request, "private": private, "direct_io": direct_io}
    with _conversation() as connection:
        with _sealed_copy(snapshot) as copy, _opened(mountpoint) as target:
            _ask(connection, message, [copy, target])
        [fuse] = _answer(connection)
        serve(fuse)
        return _answer(connection)


def attach_control(mountpoint: Path) -> int:
    """Mount FUSE at `.dieselfs` of this user's mount.

    Returns the /dev/fuse descriptor to serve it.
    """
    with _conversation() as connection, _opened(mountpoint) as root:
        _ask(connection, {"request": "control"}, [root])
        [fuse] = _answer(connection)
        return fuse


def unmount(mountpoint: Path, lazy: bool) -> None:
    """End this user's mount, with its control directory; with `lazy` also while it is in use."""
    with _conversation() as connection:
        with _opened(mountpoint) as root:
            _ask(connection, {"request": "unmount", "lazy": lazy}, [root])
        _answer(connection)


@contextmanager
def _conversation() -> Iterator[socket.socket]:
    path = service_socket()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(os.fspath(path))
            yield connection
        except (OSError, BadServiceMessage) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MountError(
                f"the mount service at {path} does not answer: {reason}",
                "look at its log: journalctl -u dieselfs-mountd",
            ) from error


def _ask(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    with suppress(BrokenPipeError):  # a busy service answers and ends at once
        send(connection, message, descriptors)


def _answer(connection: socket.socket) -> list[int]:
    """Return the descriptors of the next answer."""
    try:
        message, descriptors = receive(connection)
    except ConnectionResetError:  # likewise: the answer is there
        message, descriptors = receive(connection)
    if message["answer"] == "error":
        raise MountError(message["what"], message["hint"] or None)
    return descriptors


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"mountpoint {directory}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _sealed_copy(snapshot: Path) -> Iterator[int]:
    """Yield a copy of the snapshot in sealed memory: the verified bytes are the used ones."""
    descriptor = os.memfd_create("dieselfs-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb") as copy:
        try:
            with snapshot.open("rb") as source:
                shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            raise MountError(f"cannot read {snapshot}: {error.strerror}") from error
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor

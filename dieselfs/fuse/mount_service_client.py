"""The client of `dlcmd mountd`: an ordinary user's process has EROFS mounted over its own blob.

The service builds the image from the snapshot and mounts it; this process serves the blob through
the /dev/fuse descriptor that it gets. It must do so before the mount is complete, since the kernel
opens the blob while it mounts: therefore `serve` is called in the middle of a request.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dieselfs.errors import MountError
from dieselfs.fuse.mount_service_messages import BadMessage, Message, close_all, receive, send

TIMEOUT_S: Final = 180.0
"""Longer than the service takes at most, which answers with an error by then."""
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class ServedMount:
    """A mount that this process serves. The descriptors are the caller's to close."""

    fuse_fd: int
    """The connection to the kernel; the same that `serve` got."""
    blob_fds: list[int]
    """O_PATH descriptors of the blobs, to open through /proc/self/fd for posix_fadvise."""


class ServiceClient:
    """Requests to the service, each over a connection of its own. A failure is a `MountError`."""

    def __init__(self, socket_path: str | os.PathLike[str]) -> None:
        self._path = Path(socket_path)

    def mount(
        self,
        snapshot_path: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str],
        private: bool,
        direct_io: bool,
        serve: Callable[[int], None],
    ) -> ServedMount:
        """Mount a snapshot at an empty directory of this user.

        `serve(fuse_fd)` is called once, before this returns; it starts a server of the blob and
        returns at once. It keeps the descriptor's ownership with the caller, also if the mount
        fails later. `private`: nobody but this user and root passes the mount's root directory.
        """
        return self._served("mount", snapshot_path, mountpoint, private, direct_io, serve)

    def replace(
        self,
        snapshot_path: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str],
        private: bool,
        direct_io: bool,
        serve: Callable[[int], None],
    ) -> ServedMount:
        """Put a newer snapshot in the place of this user's mount: open files keep the older one.

        The control directory goes with the older mount; `attach_control` makes a new one.
        """
        return self._served("replace", snapshot_path, mountpoint, private, direct_io, serve)

    def attach_control(self, mountpoint: str | os.PathLike[str]) -> int:
        """Mount FUSE at `.dieselfs` of this user's mount; the /dev/fuse descriptor to serve it."""
        with self._conversation() as connection, _opened(mountpoint) as root:
            _request(connection, {"request": "control"}, [root])
            return _only(_answer(connection, "done"))

    def unmount(self, mountpoint: str | os.PathLike[str], lazy: bool) -> None:
        """End this user's mount, with its control directory. `lazy`: also while it is in use."""
        with self._conversation() as connection:
            with _opened(mountpoint) as root:
                _request(connection, {"request": "unmount", "lazy": lazy}, [root])
            close_all(_answer(connection, "done"))

    def _served(
        self,
        request: str,
        snapshot_path: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str],
        private: bool,
        direct_io: bool,
        serve: Callable[[int], None],
    ) -> ServedMount:
        message = {"request": request, "private": private, "direct_io": direct_io}
        with self._conversation() as connection:
            with _sealed_copy(snapshot_path) as snapshot, _opened(mountpoint) as target:
                _request(connection, message, [snapshot, target])
            fuse_fd = _only(_answer(connection, "serve"))
            serve(fuse_fd)
            return ServedMount(fuse_fd, _answer(connection, "done"))

    @contextmanager
    def _conversation(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(TIMEOUT_S)
            try:
                connection.connect(os.fspath(self._path))
                yield connection
            except (OSError, BadMessage) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise MountError(
                    f"the mount service at {self._path} does not answer: {reason}",
                    "look at its log: journalctl -u dieselfs-mountd",
                ) from error


def _request(connection: socket.socket, message: Message, descriptors: Sequence[int]) -> None:
    with suppress(
        BrokenPipeError
    ):  # a busy service has answered before the request, and the answer says so
        send(connection, message, descriptors)


def _answer(connection: socket.socket, expected: str) -> list[int]:
    """The descriptors of the expected answer."""
    try:
        message, descriptors = receive(connection)
    except ConnectionResetError:  # likewise: the request was not read, and the answer is there
        message, descriptors = receive(connection)
    if message.get("answer") == expected:
        return descriptors
    close_all(descriptors)
    if message.get("answer") != "error":
        raise BadMessage(f"unexpected answer {message.get('answer')!r}")
    raise MountError(_text(message.get("what")), _text(message.get("hint")) or None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _only(descriptors: Sequence[int]) -> int:
    if len(descriptors) == 1:
        return descriptors[0]
    close_all(descriptors)
    raise BadMessage("an answer has not the descriptor that it should have")


@contextmanager
def _opened(directory: str | os.PathLike[str]) -> Iterator[int]:
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"mountpoint {os.fspath(directory)}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _sealed_copy(snapshot: str | os.PathLike[str]) -> Iterator[int]:
    """The snapshot's bytes in memory that nobody can change: what is verified is what is used."""
    descriptor = os.memfd_create("dieselfs-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        try:
            with open(snapshot, "rb") as source, open(descriptor, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        except OSError as error:
            raise MountError(f"cannot read {os.fspath(snapshot)}: {error.strerror}") from error
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor
    finally:
        os.close(descriptor)

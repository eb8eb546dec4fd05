"""What one user may have of the mount service: mounts, connections, bytes of images.

All counts come from the kernel and the folder at the time, so they hold over a restart of the
service. Each user has a folder of images, and one request at a time changes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.mount_syscalls import new_mount
from dieselfs.fuse.mount_table import mount_entries

_LOCK_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one user, and of one request."""

    mounts: int = 64
    connections: int = 256
    """FUSE connections of any kind. Detached mounts with files open have them, too."""
    image_bytes: int = 8 << 30
    """Images on disk; those in use stay, the others are removed when the space is needed."""
    snapshot_bytes: int = 1 << 30
    """About 13 million files."""
    memory_bytes: int = 8 << 30
    """Address space of a process that builds an image."""
    requests: int = 4
    """At a time."""
    patience_s: float = 5.0
    """For a request to arrive, and for another request of the same user to end."""
    build_s: float = 120.0
    """To verify a snapshot and build its image."""
    mount_s: float = 15.0
    """For every other step: the kernel may wait for a server of the user's that never answers."""


@contextmanager
def users_folder(images: Path, uid: int, patience_s: float) -> Iterator[Path]:
    """The user's folder of images, locked. `MountError` if another request keeps the lock."""
    folder = images / str(uid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock, patience_s)
        yield folder
    finally:
        os.close(lock)


def _lock(descriptor: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise MountpointBusy(
                    "the service works at another request of this user", "try again"
                ) from None
            time.sleep(_LOCK_POLL_S)


def check_mounts(folder: Path, limits: Limits) -> None:
    """Raise `MountError` if the user of this folder has as many mounts as he may have."""
    found = sum(Path(entry.source).is_relative_to(folder) for entry in mount_entries())
    if found >= limits.mounts:
        raise MountError(
            f"you have {found} mounts, the most that the service makes", "unmount some of them"
        )


def make_room(folder: Path, new: Path, limits: Limits) -> None:
    """Hold the user's images within their limit: remove unused ones, oldest first.

    `new` stays, unless those in use leave no room for it: then it goes, and `MountError` is raised.
    """
    images = sorted(folder.glob("*/*"), key=_age)
    excess = sum(_size(image) for image in images) - limits.image_bytes
    for image in images:
        if excess > 0 and image != new and not is_in_use(image):
            excess -= _size(image)
            image.unlink(missing_ok=True)
    for directory in folder.iterdir():
        with suppress(OSError):  # not empty, or the lock
            directory.rmdir()
    if excess > 0:
        if not is_in_use(new):
            new.unlink(missing_ok=True)
        raise MountError(
            f"images of your mounts exceed {limits.image_bytes >> 20} MiB by {excess >> 20} MiB",
            "unmount some of them, and end what has their files open",
        )


def is_in_use(image: Path) -> bool:
    """Whether anything has the file open, a mount too that no mount table shows any more.

    A write lease is granted only on a file that nobody else has open.
    """
    descriptor = os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return True
    finally:
        os.close(descriptor)
    return False


class FuseConnections:
    """The kernel's list of FUSE connections (fusectl), in a mount that nobody else sees."""

    def __init__(self) -> None:
        self._mount = new_mount("fusectl", [("source", "dieselfs-mountd")], 0)
        self._path = Path(f"/proc/self/fd/{self._mount}")

    def close(self) -> None:
        os.close(self._mount)

    def count(self, uid: int) -> int:
        """Connections of a user, those of other programs too."""
        return sum(self._owner(entry) == uid for entry in self._path.iterdir())

    def check(self, uid: int, limits: Limits) -> None:
        """Raise `MountError` if the user has as many connections as he may have."""
        if self.count(uid) >= limits.connections:
            raise MountError(
                f"you have {limits.connections} FUSE connections, the most that the service allows",
                "unmount some, and end what has files of unmounted ones open",
            )

    def abort(self, number: int, uid: int) -> None:
        """Break off a connection if it is this user's: what waits for its server gets an error."""
        entry = self._path / str(number)
        with suppress(OSError):
            if self._owner(entry) == uid:
                (entry / "abort").write_text("1")

    @staticmethod
    def _owner(entry: Path) -> int | None:
        with suppress(OSError):
            return entry.stat().st_uid
        return None


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""The limits of one user of the mount service: mounts, connections, bytes of images.

All counts come from the kernel and the folder at the time, so they hold over a restart of the
service. Each user has a folder of images, and one request at a time changes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.mount_syscalls import new_mount
from dieselfs.fuse.mounts.mount_table import mount_entries

REQUESTS: Final = 4
"""Requests of one user at a time. A killed one that still waits in the kernel counts."""
ALL_REQUESTS: Final = 32
"""Requests of all users at a time."""
SNAPSHOT_BYTES: Final = 1 << 30
"""The size of a snapshot: about 13 million files."""
MEMORY_BYTES: Final = 8 << 30
"""The address space of a process that builds an image."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an administrator, and the time limits of the steps of a request."""

    images: Path
    """The folder of images, which belongs to root alone: one folder a user."""
    allow_other: bool = False
    """Users may show their mounts to others, whose reads then wait for the users' servers."""
    mounts: int = 64
    """Mounts of one user."""
    image_bytes: int = 8 << 30
    """Bytes of one user's images on disk.

    Images in use stay; the others are removed when the space is needed.
    """
    patience_s: float = 5.0
    """The time for a request to arrive."""
    build_s: float = 120.0
    """The time to verify a snapshot and build its image."""
    mount_s: float = 15.0
    """The time for every other step.

    The kernel may wait for a server of the user that never answers.
    """

    @property
    def connections(self) -> int:
        """FUSE connections of one user, of any kind.

        Detached mounts with open files have them, too.
        """
        return max(256, 4 * self.mounts)


@contextmanager
def users_folder(images: Path, uid: int) -> Iterator[Path]:
    """Yield the user's folder of images, locked.

    Other requests of the user wait until their time is over.
    """
    folder = images / str(uid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)


def check_mounts(folder: Path, most: int) -> None:
    """Raise `MountError` if the user of this folder has the most mounts that are allowed."""
    found = sum(Path(entry.source).is_relative_to(folder) for entry in mount_entries())
    if found >= most:
        raise MountError(
            f"you have {found} mounts, the most that the service makes", "unmount some of them"
        )


def make_room(folder: Path, new: Path, most_bytes: int) -> None:
    """Hold the user's images within their limit: remove unused ones, oldest first.

    `new` stays, unless those in use leave no room for it: then it goes, and `MountError` is raised.
    """
    sizes = {image: image.stat().st_size for image in folder.glob("*/*")}
    excess = sum(sizes.values()) - most_bytes
    others = sizes.keys() - {new}
    for image in [*sorted(others, key=lambda image: image.stat().st_mtime), new]:
        if excess > 0 and not is_in_use(image):
            excess -= sizes[image]
            image.unlink()
    for directory in folder.iterdir():
        with suppress(OSError):  # not empty, or the lock
            directory.rmdir()
    if excess > 0 or not new.exists():
        raise MountError(
            f"images of your mounts exceed {most_bytes >> 20} MiB",
            "unmount some of them, and end the processes that have their files open",
        )


def is_in_use(image: Path) -> bool:
    """Return True if anything has the file open, even a mount that no mount table shows any more.

    A write lease is granted only on a file that nothing else has open.
    """
    descriptor = os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return True
    finally:
        os.close(descriptor)
    return False


class FuseConnections:
    """The kernel's list of FUSE connections (fusectl), in a mount that no other process sees."""

    def __init__(self) -> None:
        self._mount = new_mount("fusectl", [("source", "dieselfs-mountd")], 0)
        self._path = Path(f"/proc/self/fd/{self._mount}")

    def close(self) -> None:
        os.close(self._mount)

    def check(self, uid: int, most: int) -> None:
        """Raise `MountError` if the user has the most connections that are allowed.

        Connections of other programs count, too.
        """
        if sum(_owner(entry) == uid for entry in self._path.iterdir()) >= most:
            raise MountError(
                f"you have {most} FUSE connections, the most that the service allows",
                "unmount some, and end the processes that have files of unmounted ones open",
            )

    def abort(self, number: int, uid: int) -> None:
        """Abort a connection of this user: requests that wait for its server get an error."""
        entry = self._path / str(number)
        with suppress(OSError):
            if _owner(entry) == uid:
                (entry / "abort").write_text("1")


def _owner(connection: Path) -> int | None:
    with suppress(OSError):  # it has ended meanwhile
        return connection.stat().st_uid
    return None

"""The locks of a tier's processes: POSIX locks on bytes of one file, which end with their process.

Byte n is locked by the process that fills region n. One byte far above is locked by a process that
reads all tables or changes the number of regions, and others by processes that fetch a chunk.
Closing *any* descriptor of a file drops a process's POSIX locks on it, so a process opens the lock
file once and never closes it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

_EXCLUSIVE: Final = 1 << 40
_CLAIMS: Final = 1 << 61
"""The first of the bytes locked by processes that fetch chunks: one byte for each chunk's hash."""


class RegionLocks:
    """The locks of one folder in this process. Thread-safe. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._released = threading.Condition()
        self._mine: set[int] = set()

    def take(self, region: int) -> bool:
        """Lock a region for filling; return False if any process, also this one, holds the lock."""
        with self._released:
            if region in self._mine:
                return False
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, region)
            except (BlockingIOError, PermissionError):
                return False
            self._mine.add(region)
            return True

    def release(self, region: int) -> None:
        """Unlock a region."""
        with self._released:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, region)
            self._mine.discard(region)
            self._released.notify_all()

    def claim(self, name: bytes) -> bool:
        """Claim a name on this node; return False if a process already holds the claim.

        `disclaim` or the end of the process ends the claim. Two names may share one claim.
        """
        return self.take(_claim(name))

    def disclaim(self, name: bytes) -> None:
        """End the claim of a name."""
        self.release(_claim(name))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the lock for reading or removing all regions, and hold it."""
        with self._released:
            while _EXCLUSIVE in self._mine:
                self._released.wait()
            self._mine.add(_EXCLUSIVE)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _EXCLUSIVE)
            yield
        finally:
            self.release(_EXCLUSIVE)


def _claim(name: bytes) -> int:
    return _CLAIMS + (int(xxhash.xxh3_64_intdigest(name)) >> 4)


_open: dict[tuple[int, int], RegionLocks] = {}
_opening = threading.Lock()


def locks_of(folder: Path) -> RegionLocks:
    """Return this process's locks of a tier's folder."""
    path = folder / "lock"
    path.touch(mode=0o600)  # before the open: closing a second descriptor drops the locks
    with _opening:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key not in _open:
            _open[key] = RegionLocks(path)
        return _open[key]


def _forget() -> None:
    """Drop the lock objects in a forked child, which owns none of the locks.

    The descriptors stay open: closing them would drop none of the parent's locks, but their numbers
    may be in use.
    """
    global _opening
    _opening = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget)

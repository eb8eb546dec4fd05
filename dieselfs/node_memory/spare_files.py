"""Files of evicted pieces whose memory the next pieces take over.

A tmpfs clears each page that it hands out: of the 2.2 ms that it takes to store 4 MiB in a new file 1.8 go into that, and 0.4 more into giving the old
file's pages back. Writing over a file that is there takes 0.4 ms. What others may still see must never change, so the kernel is asked: a write lease (fcntl(2),
F_SETLEASE) is granted only for a file that nobody else has open or mapped, and a spare file has no name that anybody would open. Where leases are not
to be had there are no spare files.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RecycledFile:
    """Open for writing, and nobody else's."""

    fd: int
    path: Path


class RecycledFiles:
    """Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.limit_bytes = 0
        """Beyond the budget: what they may hold together."""
        self._lock = threading.Lock()
        self._kept: list[tuple[Path, int]] = []
        """Longest kept first: the likeliest to be unmapped."""
        self._kept_bytes = 0

    def keep(self, name: str) -> bool:
        """Take a piece's file out of sight; False if it is not there, or there are enough: then it is the caller's to remove."""
        path = self._folder / f".spare.{secrets.token_hex(8)}"
        try:
            size = os.lstat(self._folder / name).st_size
            with self._lock:
                if self._kept_bytes + size > self.limit_bytes:
                    return False
                os.rename(self._folder / name, path)
                self._kept.append((path, size))
                self._kept_bytes += size
        except OSError:
            return False
        return True

    def take(self) -> RecycledFile | None:
        """One that nobody maps any more."""
        with self._lock:
            for kept in self._kept:
                fd = _leased(kept[0])
                if fd is not None:
                    self._kept.remove(kept)
                    self._kept_bytes -= kept[1]
                    return RecycledFile(fd, kept[0])
        return None

    def clear(self) -> bool:
        """Give their memory back; whether there was any."""
        with self._lock:
            kept, self._kept, self._kept_bytes = self._kept, [], 0
        for path, _ in kept:
            path.unlink(missing_ok=True)
        return bool(kept)


def _leased(path: Path) -> int | None:
    """The file, open, if nobody else has it; with its name out of sight nobody will."""
    try:
        os.chmod(path, 0o600)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # Who opened it in this moment would have a signal sent to us, by default a deadly one.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # somebody has it open or mapped, or there are no leases here
        os.close(fd)
        return None
    return fd

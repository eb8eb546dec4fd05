"""Events for chosen files that readers close (inotify).

Files in the page cache, which make no request, cause them too. A watch costs 3 µs, and its event
nothing that a reader notices. It holds neither the mount nor the file: unmounting ends it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_IN_CLOSE_NOWRITE: Final = 0x10
_IN_DONT_FOLLOW: Final = 0x02000000
_IN_ONESHOT: Final = 0x80000000
_IN_Q_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("=iIII")
"""Watch, event, cookie, and the length of a name that follows."""
_READ_BYTES: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class CloseEvents:
    """Files under one folder that are watched until they are next closed. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Watch a folder.

        Raises `OSError` if there are too many such objects: `fs.inotify.max_user_instances`.
        """
        self._folder = os.fsencode(folder) + b"/"
        self._lock = threading.Lock()
        self._positions: dict[int, int] = {}
        """Positions by watch."""
        self._watches: dict[int, int] = {}
        """Watches by position."""
        self._is_open = True
        self.is_full = False
        """True if the last watch failed at the limit, `fs.inotify.max_user_watches`."""
        self.fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        """A descriptor that is readable when a file was closed; `take` empties it."""
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "inotify")

    def __len__(self) -> int:
        """Return the number of files that are watched now."""
        return len(self._watches)

    def watch(self, position: int, path: bytes) -> bool:
        """Report `position` when the file, a path in the folder, is next closed.

        False if it cannot be watched, or is watched with another position.
        """
        mask = _IN_CLOSE_NOWRITE | _IN_ONESHOT | _IN_DONT_FOLLOW
        with self._lock:
            if not self._is_open:
                return False
            watch = _libc.inotify_add_watch(self.fd, self._folder + path, mask)
            self.is_full = watch < 0 and self._is_at_limit(ctypes.get_errno())
            if watch < 0 or watch in self._positions:
                return False
            self._positions[watch] = position
            self._watches[position] = watch
            return True

    def unwatch(self, position: int) -> None:
        """End a watch; a close that was not taken yet is not reported any more."""
        with self._lock:
            watch = self._watches.pop(position, None)
            if watch is not None:
                del self._positions[watch]
                if self._is_open:
                    _libc.inotify_rm_watch(self.fd, watch)

    def take(self) -> list[int]:
        """Return the positions of the files that were closed since the last call, in that order."""
        closed = []
        with self._lock:
            while self._is_open and (data := self._read()):
                at = 0
                while at < len(data):
                    watch, what, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    position = self._positions.pop(watch, None)
                    if what & _IN_Q_OVERFLOW:
                        log.warning(
                            "the kernel dropped inotify events: raise fs.inotify.max_queued_events"
                        )
                    if position is not None:  # otherwise it was unwatched
                        del self._watches[position]
                        if what & _IN_CLOSE_NOWRITE:
                            closed.append(position)
        return closed

    def clear(self) -> None:
        """End all watches."""
        for position in list(self._watches):
            self.unwatch(position)
        self.take()

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.fd)

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def _is_at_limit(self, number: int) -> bool:
        is_full = number == errno.ENOSPC
        if is_full and not self.is_full:
            log.warning(
                "cannot watch more files, so positions of readers are less exact: "
                "raise fs.inotify.max_user_watches"
            )
        return is_full

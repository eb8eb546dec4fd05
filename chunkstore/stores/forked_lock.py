"""A lock between the threads of a process and of all processes that are forked from it.

A process that is killed while it has the lock leaves it free: the kernel unlocks the bytes that a
process locked (`fcntl`) when it ends in any way. Taking and releasing it costs two system calls,
about 1 µs, and none before the process forks another one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from weakref import WeakSet

from chunkstore.after_fork import renew_now_and_after_fork

_locks: WeakSet[ForkedLock] = WeakSet()


class ForkedLock:
    """The lock. Use it in a `with` statement, and hold it for microseconds."""

    def __init__(self) -> None:
        self._file = unlinked_file()
        weakref.finalize(self, os.close, self._file)
        self._is_shared = False
        """True from the first fork on: other processes may have the lock."""
        _locks.add(self)
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Start free in a forked child; another process may have it."""
        self._of_process = threading.Lock()

    def share(self) -> None:
        """Exclude other processes from now on; called before each fork."""
        with self._of_process:
            self._is_shared = True

    def __enter__(self) -> None:
        self._of_process.acquire()
        if self._is_shared:
            try:
                self._lock_file()
            except BaseException:
                self._of_process.release()
                raise

    def __exit__(self, *error: object) -> None:
        if self._is_shared:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._of_process.release()

    def _lock_file(self) -> None:
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
                return
            except OSError as error:
                # The kernel sees processes, not threads: two locks that two threads of each of
                # two processes have and wait for look like a circle. They are free again soon.
                if error.errno != errno.EDEADLK:
                    raise


def unlinked_file() -> int:
    """Return the descriptor of an empty file that has no name; in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dieselfs-lock")
    import tempfile

    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


def _share_all() -> None:
    for lock in list(_locks):
        lock.share()


os.register_at_fork(before=_share_all)

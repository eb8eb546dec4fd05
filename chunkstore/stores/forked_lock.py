"""A lock between the threads of a process and of all processes that are forked from it.

A process that is killed while it has the lock leaves it free: the kernel unlocks the bytes that a
process locked (`fcntl`) when it ends in any way. Taking and releasing it costs two system calls,
about 1 µs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref

from chunkstore.after_fork import renew_now_and_after_fork


class ForkedLock:
    """The lock. Use it in a `with` statement, and hold it for microseconds."""

    def __init__(self) -> None:
        self._file = unlinked_file()
        weakref.finalize(self, os.close, self._file)
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Start free in a forked child; another process may have it."""
        self._of_process = threading.Lock()

    def __enter__(self) -> None:
        self._of_process.acquire()
        try:
            while True:
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX)
                    return
                except OSError as error:
                    # The kernel sees processes, not threads: two locks that two threads of each of
                    # two processes have and wait for look like a circle. They are free again soon.
                    if error.errno != errno.EDEADLK:
                        raise
        except BaseException:
            self._of_process.release()
            raise

    def __exit__(self, *error: object) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._of_process.release()


def unlinked_file() -> int:
    """Return the descriptor of an empty file that has no name; in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dieselfs-lock")
    import tempfile

    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file

"""One LMDB environment for each folder and process.

LMDB forbids a process to open one database twice, and to use an open one after a fork. All stores
of a folder share one environment. A process that opens an environment, or removes one whose tier is
gone, locks the folder that holds all environments of the user.

Before a fork, the environment is closed once its transactions have ended; parent and child open it
again when they need it. Closing it in the child instead would free the slots of the parent's
readers, and pages that they read would be overwritten. If a transaction still waits too long for
another process's transaction at the time of the fork, the child has no index.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import lmdb

MAP_BYTES: Final = 16 << 30
"""Bytes of address space that the database is mapped into.

The value is the same for all processes, so that no process finds the database larger than its map.
It is enough for 25 TB in segments of 256 KiB.
"""
_MAX_READERS: Final = 4096
"""Slots for read transactions of all processes together; 64 bytes each."""
_LOCK_FILE_BYTES: Final = _MAX_READERS * 64 + 4096
_SPARE_READERS: Final = 64
"""Read transactions that keep their slots: as many as there are concurrent readers.

Taking a slot waits for a mutex, which a stopped process may hold.
"""
_END_S: Final = 1.0
"""Seconds to wait for running transactions.

They take microseconds, unless they wait for another process's transaction.
"""
_TIER: Final = "tier"
"""The file that names the folder of the tier to which the index belongs."""
DATABASES: Final = (b"segments", b"regions", b"contents", b"reads", b"decisions")
"""The names of the databases in an environment."""


class IndexEnvironment:
    """The environment of one folder in this process.

    Each transaction is one call of one thread.
    """

    def __init__(self, folder: Path, tier: Path) -> None:
        self.folder, self.tier = folder, tier
        self.users = 0
        self._changed = threading.Condition()
        self._running = 0
        self._suspended = self._closed = False
        self._environment: Any = None
        self._file = (0, 0)
        self._open()

    @contextmanager
    def begin(self, *, write: bool = False) -> Iterator[Any]:
        """Yield a transaction, committed at the end if it writes. Raises `lmdb.Error`."""
        with self._changed:
            while self._suspended:
                self._changed.wait()
            if self._closed:
                raise lmdb.Error(f"the SSD index {self.folder} is closed")
            if self._environment is None:
                self._open()
            self._running += 1
        try:
            with self._environment.begin(write=write) as transaction:
                yield transaction
        finally:
            with self._changed:
                self._running -= 1
                if not self._running:
                    self._changed.notify_all()

    @property
    def is_there(self) -> bool:
        """True if the folder still has the database that was opened.

        Another process may have found it damaged and created a new one.
        """
        try:
            return _file_id(self.folder) == self._file
        except OSError:
            return False

    def free_slots_of_the_dead(self) -> None:
        """Free the reader slots of killed processes.

        Such a slot prevents the reuse of old pages, so the database would grow.
        """
        with self._changed:
            if self._environment is not None:
                self._environment.reader_check()

    def close(self) -> None:
        """Close the environment after its running transactions, which get a second to end."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, _END_S)
            self._close()

    def suspend(self) -> None:
        """Close the environment before a fork; block new transactions until `resume`."""
        self._changed.acquire()
        self._suspended = True  # else new transactions begin while the running ones end
        self._suspended = self._changed.wait_for(lambda: not self._running, _END_S)
        self._close()

    def resume(self) -> None:
        """Allow transactions again after a fork, in the parent."""
        self._suspended = False
        self._changed.notify_all()
        self._changed.release()

    def _open(self) -> None:
        with _only_one_opens(self.folder.parent):
            self._open_alone()

    def _open_alone(self) -> None:
        _make_private(self.folder)
        tier = os.path.realpath(self.tier)
        if _tier_of(self.folder) != tier:
            (self.folder / _TIER).write_text(tier)
        _reserve_locks(self.folder)
        environment: Any = lmdb.open(
            str(self.folder),
            map_size=MAP_BYTES,
            max_dbs=len(DATABASES),
            max_readers=_MAX_READERS,
            max_spare_txns=_SPARE_READERS,
            sync=False,
            metasync=False,
            mode=0o600,
        )
        self._file = _file_id(self.folder)
        databases = map(environment.open_db, DATABASES)
        self.segments, self.regions, self.contents, self.reads, self.decisions = databases
        environment.reader_check()
        self._environment = environment

    def _close(self) -> None:
        if self._environment is not None and not self._running:
            self._environment.close()
            self._environment = None


_open: dict[Path, IndexEnvironment] = {}
_opening = threading.Lock()
_alone = threading.Lock()
"""The lock for `_only_one_opens`, taken after all other locks."""


def acquire(folder: Path, tier: Path) -> IndexEnvironment:
    """Return this process's environment of the folder; create it for `tier` if it is missing.

    Each call needs one `release`. Raises `lmdb.Error` and `OSError`. Raises `PermissionError`
    unless folder and parent belong to this user alone: all users share a tmpfs, and the files are
    mapped and trusted.
    """
    with _opening:
        _make_private(folder.parent)
        found = _open.get(folder)
        if found is None or not found.is_there:  # users of the former one open this one soon
            found = _open[folder] = IndexEnvironment(folder, tier)
        found.users += 1
        return found


def release(environment: IndexEnvironment) -> None:
    """Release an environment; the last release closes it."""
    with _opening:
        environment.users -= 1
        if not environment.users:
            if _open.get(environment.folder) is environment:
                del _open[environment.folder]
            environment.close()


def discard(folder: Path) -> None:
    """Remove an unusable database.

    A process that has it open continues with the removed files until it checks `is_there`.
    """
    for name in ("data.mdb", "lock.mdb"):
        (folder / name).unlink(missing_ok=True)


def sweep(parent: Path) -> list[Path]:
    """Remove the databases of deleted tiers that no process has open; return their folders.

    The function accesses the disks of all tiers, so call it in a thread that may hang.
    """
    return [folder for folder in parent.iterdir() if _is_of_none(folder) and _removed(folder)]


def _is_of_none(folder: Path) -> bool:
    """Return whether the database names its tier, and that tier does not exist."""
    tier = _tier_of(folder)
    if tier is None:
        return False
    try:
        os.lstat(tier)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _tier_of(folder: Path) -> str | None:
    try:
        return (folder / _TIER).read_text()
    except (OSError, ValueError):
        return None


def _removed(folder: Path) -> bool:
    with _opening, _only_one_opens(folder.parent):
        if folder in _open or _is_open_elsewhere(folder):
            return False
        discard(folder)
        (folder / _TIER).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
        return True


def _is_open_elsewhere(folder: Path) -> bool:
    """Return whether another process has the database open: it holds LMDB's lock of byte 0.

    This process must not have the database open: it would lose its own lock.
    """
    try:
        fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def _only_one_opens(parent: Path) -> Iterator[None]:
    """Exclude other processes and threads for the milliseconds of an opening."""
    with _alone:  # closing the file drops the lock for all threads
        fd = os.open(parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _reserve_locks(folder: Path) -> None:
    """Reserve all blocks of LMDB's lock file. Raises `OSError`.

    The file is mapped and written to; on a full tmpfs this would end the process with SIGBUS. Call
    this only while the process has not opened the database: closing the file drops all its POSIX
    locks on it.
    """
    fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(fd)


def _file_id(folder: Path) -> tuple[int, int]:
    found = os.stat(folder / "data.mdb")
    return found.st_dev, found.st_ino


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a private folder of user {os.geteuid()} (mode 0700): remove it"
        )


def _before_fork() -> None:
    _opening.acquire()
    for environment in _open.values():
        environment.suspend()


def _after_fork_in_parent() -> None:
    for environment in _open.values():
        environment.resume()
    _opening.release()


def _after_fork_in_child() -> None:
    """Drop the environments in a forked child; its stores open their own."""
    global _opening, _alone
    for environment in _open.values():
        _left.append(environment)
    _open.clear()
    _opening, _alone = threading.Lock(), threading.Lock()


_left: list[IndexEnvironment] = []
"""The parent's environments, in a child: closed, or in use at the fork."""
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)

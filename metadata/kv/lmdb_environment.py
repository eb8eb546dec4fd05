"""LMDB environments, one per folder and process: open, share, grow, and close before a fork.

LMDB forbids a process to open one database twice (its locks belong to the process, and closing
either would drop them) and to carry an open one over a fork. So all stores of a folder share one
environment here. Before a fork every environment is closed, once its running transactions have
ended; parent and child open it again when they next need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from metadata.errors import IndexDamaged, IndexUnavailable
from metadata.kv.crash_report import CrashReport

Result = TypeVar("Result")

INITIAL_MAP_BYTES: Final = 1 << 30
"""The initial size of the map: address space only, since the file takes what it holds."""
_MAX_READERS: Final = 1024
"""The slots for read transactions of all processes together; 64 bytes each."""
_FULL_BELOW_BYTES: Final = 1 << 18
_UNSOUND: Final = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)
_ATTEMPTS: Final = 64
"""The most attempts. Each one doubles the map or finds that another process did.

2^64 bytes end every loop.
"""


class LmdbEnvironment:
    """The shared environment of one folder, which runs whole transactions.

    Each transaction runs on the calling thread (LMDB's write lock belongs to a thread).
    """

    def __init__(self, folder: Path, map_bytes: int) -> None:
        self._folder = folder
        self._map_bytes = map_bytes
        self._crash_report = CrashReport(folder)
        self._env: lmdb.Environment | None = None
        self._changed = threading.Condition()
        self._running = 0
        self._exclusive = False
        self._retired = False
        self.users = 0

    def run(self, operation: Callable[[lmdb.Transaction], Result], *, write: bool) -> Result:
        """Return the result of `operation` in one transaction, which is committed if `write`.

        If the map turns out too small, the effects are rolled back and `operation` runs again.
        """
        for _ in range(_ATTEMPTS):
            map_bytes = self._map_bytes
            try:
                with (
                    self._shared() as env,
                    self._crash_report,
                    env.begin(write=write) as transaction,
                ):
                    return operation(transaction)
            except lmdb.MapFullError:
                self._grow(map_bytes)
            except lmdb.MapResizedError:
                self._adopt_size()
            except lmdb.PanicError as error:
                self.close()  # it is unusable; the file is sound, and the next call opens it again
                raise self._unavailable(error) from error
            except lmdb.Error as error:
                raise self._unavailable(error) from error
        raise IndexUnavailable(
            f"index {self._folder}: cannot enlarge the database enough: try again"
        )

    def check_part(self, prefix: bytes, is_sound: Callable[[bytes, bytes], bool]) -> None:
        """Check the pages with the records of this prefix: see `lmdb_pages.check_part`."""
        from metadata.kv.lmdb_pages import check_part

        check_part(self._folder, prefix, is_sound)

    def close(self) -> None:
        """Close the environment once its transactions have ended; the next call opens it again."""
        with self._alone():
            self._close()

    def retire(self) -> None:
        """Close for good. A late call must not open what the next owner opens."""
        with self._alone():
            self._close()
            self._retired = True

    def suspend(self) -> None:
        """Close, and block new transactions until `resume`."""
        self._enter_alone()
        self._close()

    def resume(self) -> None:
        """Let transactions run again."""
        self._leave_alone()

    def resume_in_child(self) -> None:
        """Let transactions run in the child of a fork.

        The threads that waited for the condition exist only in the parent.
        """
        self._changed = threading.Condition()
        self._running = 0
        self._exclusive = False

    @contextmanager
    def _shared(self) -> Iterator[lmdb.Environment]:
        with self._changed:
            while self._exclusive:
                self._changed.wait()
            env = self._env or self._open()
            self._running += 1
        try:
            yield env
        finally:
            with self._changed:
                self._running -= 1
                if not self._running:
                    self._changed.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._enter_alone()
        try:
            yield
        finally:
            self._leave_alone()

    def _enter_alone(self) -> None:
        with self._changed:
            while self._exclusive:
                self._changed.wait()
            self._exclusive = True
            while self._running:
                self._changed.wait()

    def _leave_alone(self) -> None:
        with self._changed:
            self._exclusive = False
            self._changed.notify_all()

    def _open(self) -> lmdb.Environment:
        if self._retired:
            raise IndexUnavailable(f"index {self._folder}: this connection is closed")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._look_into_crash()
            with self._crash_report:
                env = self._opened()
                try:
                    # the slot of a killed reader would keep old pages from being used again
                    env.reader_check()
                    _fill_up(env, self._folder)
                except BaseException:
                    env.close()
                    raise
        except (OSError, lmdb.Error) as error:
            raise self._unavailable(error) from error
        self._map_bytes = env.info()["map_size"]
        self._env = env
        return env

    def _look_into_crash(self) -> None:
        """Check the file if a process has died in it. Raises `IndexDamaged`.

        The process may have been sent the signal by another one, so a sound file is used again.
        """
        if self._crash_report.is_left_behind():
            from metadata.kv.lmdb_pages import check_pages

            check_pages(self._folder)
            self._crash_report.clear()

    def _opened(self) -> lmdb.Environment:
        """Return the environment with a map as large as the database.

        Another process may enlarge the database at the same moment.
        """
        for _ in range(_ATTEMPTS):
            try:
                return lmdb.open(
                    str(self._folder),
                    map_size=self._map_bytes,
                    max_readers=_MAX_READERS,
                    mode=0o600,
                )
            except lmdb.MapResizedError:
                continue
        raise IndexUnavailable(
            f"index {self._folder}: cannot open it, since it grows all the time: try again"
        )

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _grow(self, full_at: int) -> None:
        """Double the map, unless another thread has done so."""
        with self._alone():
            if self._map_bytes == full_at and self._env is not None:
                self._resize(self._env, 2 * full_at)

    def _adopt_size(self) -> None:
        """Map what another process mapped after it has grown the database."""
        with self._alone():
            if self._env is not None:
                self._resize(self._env, 0)

    def _resize(self, env: lmdb.Environment, size: int) -> None:
        try:
            env.set_mapsize(size)
        except lmdb.Error as error:
            raise self._unavailable(error) from error
        self._map_bytes = env.info()["map_size"]

    def damaged(self, reason: str) -> IndexDamaged:
        """Return the error of a file that is unsound as a whole."""
        return IndexDamaged(
            f"index {self._folder}: it is not a sound LMDB database ({reason}): `dlcmd recover "
            "DATASET` moves it away and rebuilds it from the store",
            self._folder,
        )

    def _unavailable(self, error: Exception) -> IndexUnavailable | IndexDamaged:
        reason = str(error)
        if isinstance(error, _UNSOUND):
            return self.damaged(reason)
        if "No space left" in reason or "quota" in reason.lower() or self._disk_is_full(error):
            advice = "the disk is full, and nothing was changed: free space and try again"
        elif isinstance(error, PermissionError) or "Permission denied" in reason:
            advice = "permission denied: check that the folder belongs to you"
        elif isinstance(error, (FileExistsError, NotADirectoryError)):
            advice = "it is not a folder: choose another place for the index"
        else:
            from metadata.kv.lmdb_pages import check_pages

            try:
                check_pages(self._folder)  # LMDB has many words for a page that it did not expect
            except IndexDamaged as damaged:
                return damaged
            advice = f"{reason}: check the folder and try again"
        return IndexUnavailable(f"index {self._folder}: {advice}")

    def _disk_is_full(self, error: Exception) -> bool:
        """Return whether an I/O error means a full disk.

        LMDB reports a write that ended early as an I/O error, and most disks fill that way.
        """
        if "Input/output error" not in str(error):
            return False
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _FULL_BELOW_BYTES


def _fill_up(env: lmdb.Environment, folder: Path) -> None:
    """Extend a file that was cut to the length that it had.

    A page beyond the end of the file would end the process (SIGBUS). A sound file may lack free
    pages at its end; raises `IndexDamaged` if it lacks others.
    """
    wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    with open(f"{env.path()}/data.mdb", "rb+") as file:
        present = os.fstat(file.fileno()).st_size
        if present >= wanted:
            return
        from metadata.kv.lmdb_pages import check_pages

        check_pages(folder)
        if hasattr(os, "posix_fallocate"):  # never shorter, whatever other processes do
            os.posix_fallocate(file.fileno(), present, wanted - present)
        else:  # macOS
            file.truncate(wanted)


_environments: dict[Path, LmdbEnvironment] = {}
_environments_lock = threading.Lock()


def acquire_environment(folder: Path, map_bytes: int = INITIAL_MAP_BYTES) -> LmdbEnvironment:
    """Return this process's environment of the (resolved) folder.

    Each call needs one `release_environment`.
    """
    with _environments_lock:
        environment = _environments.get(folder)
        if environment is None:
            environment = _environments[folder] = LmdbEnvironment(folder, map_bytes)
        environment.users += 1
        return environment


def release_environment(environment: LmdbEnvironment) -> None:
    """Give the environment back; the last user closes it, after the running transactions."""
    with _environments_lock:
        environment.users -= 1
        if not environment.users:
            del _environments[environment._folder]
            environment.retire()


def _before_fork() -> None:
    _environments_lock.acquire()
    for environment in _environments.values():
        environment.suspend()


def _after_fork_in_parent() -> None:
    for environment in _environments.values():
        environment.resume()
    _environments_lock.release()


def _after_fork_in_child() -> None:
    for environment in _environments.values():
        environment.resume_in_child()
    _environments_lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)

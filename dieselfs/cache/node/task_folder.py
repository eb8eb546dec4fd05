"""The folder of a task in a node's shared memory, and the task's leadership.

The folder is `<tmpfs>/dieselfs-<uid>/<task>/`.

The leader holds a POSIX record lock on the file `lock`. Children do not inherit it, and the kernel
frees it however the process ends. Two of its traits shape this module:

- A process is never excluded by its own lock, so a registry lists what this process leads.
- To close *any* descriptor of the file drops the lock. So only this module opens the file, and
  never one that this process leads.

Byte 0 of the lock file is the leader's. A sweeper takes byte 1 with it until it has moved the
folder away. So a process that starts at this moment can tell it from a leader, and waits for it.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from chunkstore.chunk_format import DatasetRef
from dieselfs.errors import LocalFileError, UsageError

VARIABLE: Final = "DIESELFS_MEMORY_FOLDER"
_TASK: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_ID_DIGITS: Final = 16
"""The digits of a dataset's id in a task's name: 64 of 128 bits tell datasets of one name apart."""
_MAX_SOCKET_PATH: Final = 107
"""The bytes of a socket's path that fit into sockaddr_un: unix(7)."""
_LEADER_BYTE: Final = 0
_SWEEPER_BYTE: Final = 1


def memory_root() -> Path:
    """Return the folder of this user's tasks; create it if it is missing.

    Raises `LocalFileError` if other users have access to it.
    """
    base = Path(os.environ.get(VARIABLE) or "/dev/shm").absolute()
    root = base / f"dieselfs-{os.geteuid()}"
    make_private(root)
    return root


def default_task(dataset: DatasetRef) -> str:
    """Return the task of processes that name none: all that read the same dataset on the node."""
    digits = dataset.id.hex()[:_ID_DIGITS]
    return f"{dataset.name[: 63 - len(digits)]}-{digits}"


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """The paths of one task on one node."""

    path: Path

    @classmethod
    def at(cls, task: str, root: Path | None = None) -> TaskFolder:
        """Create the folder if it is missing.

        Raises `UsageError` for an invalid name, `LocalFileError` if other users have access to it.
        """
        if not _TASK.fullmatch(task):
            raise UsageError(
                f"{task!r} is not a name for a task",
                "use 1 to 64 letters, digits, '.', '_' and '-', not starting with '.'",
            )
        folder = cls((root or memory_root()) / task)
        if len(os.fsencode(folder.socket_path)) > _MAX_SOCKET_PATH:
            raise LocalFileError(
                f"{folder.socket_path}: the path of a socket has at most {_MAX_SOCKET_PATH} bytes",
                f"set {VARIABLE} to a folder with a shorter path, or choose a shorter name for"
                " the task",
            )
        folder.make()
        return folder

    def make(self) -> None:
        """Create the folder if it is missing, as after a sweep.

        Raises `LocalFileError` if other users have access to it.
        """
        while True:
            make_private(self.path)
            try:
                _make(self.chunks)
                _make(self.plans)
                return
            except FileNotFoundError:
                continue  # swept just now

    @property
    def lock_path(self) -> Path:
        """The lock file. Never open it: see the module's docstring."""
        return self.path / "lock"

    @property
    def socket_path(self) -> Path:
        """The socket on which the master listens."""
        return self.path / "socket"

    @property
    def chunks(self) -> Path:
        """The folder of cache blocks."""
        return self.path / "chunks"

    @property
    def heads(self) -> Path:
        """The heads of the chunks, in a task with peers; its master creates the folder."""
        return self.path / "heads"

    @property
    def checksums(self) -> Path:
        """The checksums of cache blocks; the master creates the folder."""
        return self.path / "checksums"

    @property
    def plans(self) -> Path:
        """The folder of plan files."""
        return self.path / "plans"

    @property
    def peers(self) -> Path:
        """The files that the node's processes need to ask other nodes.

        The master of a task with peers creates the folder.
        """
        return self.path / "peers"

    def try_lead(self) -> Leadership | None:
        """Return the leadership of this task, or None if this or another process has it.

        Never wait for a leader.
        """
        with _registry.mutex:
            while True:
                self.make()
                if _file_id(self.lock_path) in _registry.led:
                    return None
                try:
                    fd = os.open(
                        self.lock_path,
                        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                        0o600,
                    )
                except FileNotFoundError:
                    continue  # swept just now
                locked = _try_lock(fd, _LEADER_BYTE)
                if not locked:
                    fcntl.lockf(fd, fcntl.LOCK_EX, 1, _SWEEPER_BYTE)  # then no sweeper is at work
                    locked = _try_lock(fd, _LEADER_BYTE)
                    fcntl.lockf(fd, fcntl.LOCK_UN, 1, _SWEEPER_BYTE)
                if _file_id(self.lock_path) != _id_of(os.fstat(fd)):
                    os.close(fd)  # the file was swept before it was locked
                    continue
                if not locked:
                    os.close(fd)
                    return None
                self.make()  # a sweep that was killed may have left parts out
                return _registry.enter(Leadership(self, fd), fd)


class Leadership:
    """The leadership of a task, until it is released or the process ends.

    A forked child has none.
    """

    def __init__(self, folder: TaskFolder, fd: int) -> None:
        self.folder = folder
        self._fd: int | None = fd

    @property
    def held(self) -> bool:
        """True if this process leads; False in a forked child."""
        return self._fd is not None

    def release(self, remove_folder: bool = False, timeout_s: float = math.inf) -> None:
        """Let another process lead; do nothing if it was released before.

        With `remove_folder` the folder and its files are removed. Files that are left after
        `timeout_s` are deleted by a process of their own.
        """
        with _registry.mutex:
            fd, self._fd = self._fd, None
            if fd is None:
                return
            # If somebody has removed the folder, the one of its name may be another leader's.
            if remove_folder and _file_id(self.folder.lock_path) == _id_of(os.fstat(fd)):
                _remove(self.folder.path, timeout_s=timeout_s)
            _registry.leave(fd)

    def __enter__(self) -> Leadership:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _lose(self) -> None:
        """Close the file in a forked child, before the child has locks that closing would drop."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sweep(root: Path | None = None) -> int:
    """Remove this user's task folders that no process leads; return how many.

    Other processes may start, lead and sweep meanwhile.
    """
    root = memory_root() if root is None else root
    removed = 0
    with os.scandir(root) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(found.st_mode) and _is_private(found):
                with _registry.mutex:
                    removed += _sweep_one(Path(entry.path))
    return removed


def _sweep_one(folder: Path) -> bool:
    lock = folder / "lock"
    if _file_id(lock) in _registry.led:
        return False
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # removed by another sweep, or not a regular lock file
        return False
    try:
        return (
            _try_lock(fd, _LEADER_BYTE, _SWEEPER_BYTE)
            and _file_id(lock) == _id_of(os.fstat(fd))
            and _remove(folder, lambda: fcntl.lockf(fd, fcntl.LOCK_UN, 1, _SWEEPER_BYTE))
        )
    finally:
        os.close(fd)


def _remove(
    folder: Path, moved: Callable[[], object] = lambda: None, timeout_s: float = math.inf
) -> bool:
    """Delete a folder that this process has locked.

    Its name is free at once; deleting takes some 0.2 ms a chunk.
    """
    grave = folder.with_name(f".{os.urandom(8).hex()}")  # others sweep it after a kill here
    try:
        os.rename(folder, grave)
    except OSError:
        return False
    moved()
    deadline = time.monotonic() + timeout_s
    for part in ("chunks", "heads", "checksums"):
        with suppress(OSError), os.scandir(grave / part) as entries:
            for entry in entries:
                if time.monotonic() >= deadline:
                    _leave_to_another(grave)
                    return True
                os.unlink(entry.path)
    shutil.rmtree(grave, ignore_errors=True)
    return True


def _leave_to_another(grave: Path) -> None:
    """Delete the folder in a detached process."""
    nothing = subprocess.DEVNULL
    command = ["sh", "-c", 'rm -rf -- "$0" &', os.fspath(grave)]
    with suppress(OSError):  # then the next leader of any task sweeps it
        subprocess.run(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )


def _try_lock(fd: int, first: int, last: int | None = None) -> bool:
    """Lock bytes first … last of the file, unless another process has one of them."""
    length = 1 if last is None else last - first + 1
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, first)
    except (BlockingIOError, PermissionError):
        return False
    return True


_FileId = tuple[int, int]
"""The device and the inode."""


def _id_of(found: os.stat_result) -> _FileId:
    return found.st_dev, found.st_ino


def _file_id(path: Path) -> _FileId | None:
    try:
        return _id_of(os.lstat(path))
    except FileNotFoundError:
        return None


class _Registry:
    """The tasks that this process leads.

    The mutex is held whenever a lock file is opened or closed.
    """

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.led: dict[_FileId, Leadership] = {}

    def enter(self, leadership: Leadership, fd: int) -> Leadership:
        self.led[_id_of(os.fstat(fd))] = leadership
        return leadership

    def leave(self, fd: int) -> None:
        del self.led[_id_of(os.fstat(fd))]
        os.close(fd)

    def forget(self) -> None:
        """Drop all in a forked child.

        It has no locks yet, so closing the files drops none of its own.
        """
        self.mutex = threading.Lock()
        for leadership in self.led.values():
            leadership._lose()
        self.led.clear()


_registry = _Registry()
os.register_at_fork(after_in_child=_registry.forget)


def make_private(folder: Path) -> None:
    """Create a folder that only this user can access, or check it.

    In a tmpfs that all users share any of them may have created the folder.
    """
    try:
        _make(folder)
        found = os.lstat(folder)
    except FileNotFoundError:
        if not folder.parent.exists():
            raise LocalFileError(
                f"the folder {folder.parent} does not exist",
                f"set {VARIABLE} to a folder on a tmpfs with enough room",
            ) from None
        make_private(folder)  # swept between the two calls
        return
    except OSError as error:
        raise LocalFileError(
            f"{folder}: {error.strerror}", f"set {VARIABLE} to a folder that you may write to"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or not _is_private(found):
        raise LocalFileError(
            f"{folder} does not belong to this user alone (user {os.geteuid()}, mode 0700)",
            f"remove it, or set {VARIABLE} to a folder that nobody else may write to",
        )


def _make(folder: Path) -> None:
    """Create the folder unless it exists.

    `Path.mkdir(exist_ok=True)` fails if the folder is removed while it checks the existing file.
    """
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077

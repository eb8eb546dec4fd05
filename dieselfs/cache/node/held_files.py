"""Records that live as long as their process: files in a private folder of shared memory.

Each file is kept open and locked (`flock`) by the process that wrote it, so its record is forgotten
when that process and its forked children end in whatever way, and no clock matters. A record is
written in place, behind its length and checksum, and a process that meets a write under way looks
again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from dieselfs.cache.node.task_folder import VARIABLE, make_private
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)

_PREFIX: Final = struct.Struct("=QQ")
"""The bytes of the record, and their checksum."""
_LOOKS: Final = 3


def private_folder(what: str) -> Path:
    """Return the path of this user's folder for records of a kind, such as `jobs`."""
    base = Path(os.environ.get(VARIABLE) or "/dev/shm").absolute()
    return base / f"dieselfs-{what}-{os.geteuid()}"


class HeldFiles:
    """The records of one kind in a folder, which is made by the first one."""

    def __init__(self, folder: Path, suffix: str, *, max_files: int, max_bytes: int) -> None:
        """`suffix` is that of the files' names, and `max_bytes` the limit of a record."""
        self.folder = folder
        self._suffix, self._max_files, self._max_bytes = suffix, max_files, max_bytes
        self._held: dict[str, int] = {}
        """The descriptors of the records of this process, which have their locks."""

    def put(self, name: str, content: bytes) -> None:
        """Write a record of this process.

        Raises `OSError`, `RegistryUnavailable` if there are too many, and `LocalFileError` if other
        users have access to the folder.
        """
        fd = self._held.get(name)
        # A process that looks may be late: it found the last record of this name dead, and has
        # deleted this one.
        if fd is not None and not os.fstat(fd).st_nlink:
            os.close(self._held.pop(name))
            fd = None
        if fd is None:
            self._create(name, content)
        else:
            _write(fd, content)

    def remove(self, name: str) -> bool:
        """Remove a record of this process; return whether there was one."""
        fd = self._held.pop(name, None)
        if fd is None:
            return False
        with suppress(OSError):
            os.unlink(self.folder / f"{name}{self._suffix}")
        os.close(fd)
        return True

    def contents(self, prefix: str = "") -> tuple[list[bytes], bool]:
        """Return the records whose names begin with `prefix`, and whether some were dead.

        Dead ones are deleted; what is damaged is b"". Raises `OSError`.
        """
        contents, has_dead = [], False
        for name in self._names():
            if not name.startswith(prefix):
                continue
            path = self.folder / name
            try:
                with _opened(path) as fd:
                    if _is_held(fd):
                        contents.append(self._read(fd))
                    else:
                        path.unlink()
                        has_dead = True
            except FileNotFoundError:
                continue
            except OSError as error:  # not one of ours
                log.debug("%s is skipped: %s", path, error)
                contents.append(b"")
        return contents, has_dead

    def count(self, prefix: str = "") -> int:
        """Return the number of files whose names begin with `prefix`, dead ones too."""
        with suppress(FileNotFoundError):
            return sum(name.startswith(prefix) for name in self._names())
        return 0

    def close(self) -> None:
        """Let go of the records of this process."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def _names(self) -> Iterator[str]:
        return names_in(self.folder, self._suffix)

    def _create(self, name: str, content: bytes) -> None:
        """Make the record's file, locked before others see it."""
        make_private(self.folder)
        if self.count() >= self._max_files:
            raise RegistryUnavailable(f"{self.folder} is full")
        temporary = self.folder / f".{name}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _write(fd, content)
            os.rename(temporary, self.folder / f"{name}{self._suffix}")
        except BaseException:
            os.close(fd)
            raise
        self._held[name] = fd

    def _read(self, fd: int) -> bytes:
        """Return the record; what is damaged is returned as b""."""
        for _ in range(_LOOKS):
            found = os.pread(fd, _PREFIX.size + self._max_bytes, 0)
            if len(found) < _PREFIX.size:
                break
            length, checksum = _PREFIX.unpack_from(found)
            content = found[_PREFIX.size : _PREFIX.size + length]
            if len(content) == length and xxhash.xxh3_64_intdigest(content) == checksum:
                return content
        return b""


def names_in(folder: Path, suffix: str) -> Iterator[str]:
    """Yield the names of a folder's files of a kind, without those under way. Raises `OSError`."""
    return (
        name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith(".")
    )


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_held(fd: int) -> bool:
    """Return whether the publisher lives. Several may look at a time."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _write(fd: int, content: bytes) -> None:
    os.pwrite(fd, _PREFIX.pack(len(content), xxhash.xxh3_64_intdigest(content)) + content, 0)

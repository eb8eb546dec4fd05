"""Cache blocks as files in the folder `chunks` of a task's folder.

A file appears under its name when it is complete. It is never written, truncated or renamed again
while any process has it open or mapped. So a process that maps a file sees the same bytes as long
as the map lives, also after the file is removed. Only then does another block take over the file's
memory (`recycled_files`). A file whose name starts with a dot is not complete.

Tmpfs blocks are reserved before they are filled, since a full tmpfs ends a process that fills them
through a map (SIGBUS).

A checksum of each block is kept beside the files (`block_checksums`). A new master does not trust
the files that it finds: it hides them from the task's other processes, under names that begin with
`.adopted.`, until it has verified them. A file without a checksum is removed.

In a task with peers the head of each whole chunk is kept too, as a file of the same name in the
folder `heads`. It is written before the chunk's own file and removed after it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import stat
from pathlib import Path
from typing import Final

import numpy as np

from chunkstore.chunk_id import PRINTED_LENGTH
from dieselfs.cache.node.block_checksums import BlockChecksums, file_matches
from dieselfs.cache.node.recycled_files import RecycledFile, RecycledFiles
from dieselfs.errors import CacheFull, LocalFileError

log = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_COMPLETE_MODE: Final = 0o400
_ADOPTED: Final = ".adopted."
"""The prefix of the name of an adopted file that is not verified yet.

A master of a former release takes it for an unfinished file, and removes it.
"""


class FileSystemFull(CacheFull):
    """The file system, or this user's quota on it, has no free blocks."""


class ChunkFiles:
    """The folder of cache blocks as the task's master sees it; only the master changes it.

    Thread-safe if each name is stored by one thread at a time.
    """

    def __init__(
        self, folder: Path, heads: Path | None = None, checksums: Path | None = None
    ) -> None:
        """Use `folder` for cache blocks and `heads` for the heads of chunks.

        `heads` and `checksums` are created if they are missing. None means that heads, or
        checksums, are not kept; without checksums no file can be adopted. Raises `LocalFileError`.
        """
        self._folder = folder
        self._checksums = None if checksums is None else BlockChecksums(checksums)
        self._recycled = RecycledFiles(folder)
        self._heads = heads
        if heads is not None:
            try:
                heads.mkdir(0o700, exist_ok=True)
            except OSError as error:
                raise LocalFileError(f"cannot create {heads}: {error.strerror}") from error

    def store(self, name: str, data: memoryview, head: memoryview | None = None) -> None:
        """Write the file of a cache block, after its checksum and the file of its head.

        It takes about 2 ms for 4 MiB, and 0.5 ms if a recycled file is available.

        Raises `FileSystemFull`, or `LocalFileError` for any other failure to write. Then no file is
        left.
        """
        if not len(data):
            raise ValueError(f"block {name} is empty")
        try:
            if self._checksums is not None:
                self._checksums.keep(name, data)
            if head is not None and self._heads is not None:
                self._store(self._heads, name, head)
            self._store(self._folder, name, data)
        except BaseException as error:
            self._forget(name)
            if isinstance(error, OSError):
                raise _written_badly(error, self._folder / name) from error
            raise

    def allow_recycled(self, limit_bytes: int) -> None:
        """Keep up to `limit_bytes` of removed files as recycled buffers."""
        self._recycled.limit_bytes = limit_bytes

    def _store(self, folder: Path, name: str, data: memoryview) -> None:
        recycled = self._recycled.take() if folder is self._folder else None
        try:
            try:
                _fill(folder, name, data, recycled)
            except FileSystemFull:
                if not self._recycled.clear():
                    raise
                _fill(folder, name, data, None)
        finally:
            if recycled is not None:
                os.close(recycled.fd)

    def remove(self, name: str) -> None:
        """Remove the file of a cache block; do nothing if it is missing.

        Its memory is freed, or used for another block, when no process maps it any more.
        """
        if not self._recycled.keep(name):
            (self._folder / name).unlink(missing_ok=True)
        self._adopted(name).unlink(missing_ok=True)
        self._forget(name)

    def has(self, name: str, length: int) -> bool:
        """Return whether a complete file of that length exists, maybe unverified. 6 µs."""
        for path in (self._folder / name, self._adopted(name)):
            try:
                return os.lstat(path).st_size == length
            except FileNotFoundError:
                continue
        return False

    def length(self, name: str) -> int:
        """Return the bytes of a block's file; 0 if it is gone, or not verified yet."""
        try:
            return os.lstat(self._folder / name).st_size
        except FileNotFoundError:
            return 0

    def exists(self, name: str) -> bool:
        """Return whether a block has a file, maybe unverified."""
        # In this order: a file that is revealed meanwhile is found under one of its two names.
        return os.path.lexists(self._adopted(name)) or os.path.lexists(self._folder / name)

    def free_bytes(self) -> int:
        """Return the free bytes of the file system."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def adopt(self) -> dict[str, int]:
        """Return the name and the bytes of each complete cache block; its head counts too.

        The files are hidden until `reveal`. Files that a dead master left unfinished are removed,
        and those without a checksum. Where heads are kept, whole chunks without a head are removed
        too, since peers cannot verify them.
        """
        found = self._hidden_files()
        if self._checksums is not None:
            self._checksums.keep_only(set(found))
        if self._heads is None:
            return found
        heads = _complete_files(self._heads)
        for name in heads.keys() ^ {name for name in found if len(name) == PRINTED_LENGTH}:
            self.remove(name)
            found.pop(name, None)
        return {name: length + heads.get(name, 0) for name, length in found.items()}

    def is_adopted_sound(self, name: str) -> bool | None:
        """Return whether an adopted file has its checksum: 1 ms for 4 MiB. None: it is gone."""
        return self._matches(self._adopted(name), name)

    def is_sound(self, name: str) -> bool | None:
        """Return whether a block's file has its checksum. None: it is gone, or not verified yet."""
        return self._matches(self._folder / name, name)

    def reveal(self, name: str) -> None:
        """Give an adopted file its name back, so that the task's processes map it."""
        try:
            os.rename(self._adopted(name), self._folder / name)
        except FileNotFoundError:
            pass  # evicted meanwhile

    def _hidden_files(self) -> dict[str, int]:
        """Hide the complete files that have a checksum, and remove the others; return the bytes."""
        found = {}
        with os.scandir(self._folder) as entries:
            listed = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        for file_name, file in listed:
            name = block_name(file_name)
            path = self._folder / file_name
            if not stat.S_ISREG(file.st_mode):
                continue
            if name.startswith(".") or not self._may_be(name, file.st_size):
                path.unlink(missing_ok=True)
                continue
            if name == file_name:
                os.rename(path, self._adopted(name))
            found[name] = file.st_size
        return found

    def _may_be(self, name: str, length: int) -> bool:
        checksum = None if self._checksums is None else self._checksums.of(name)
        return checksum is not None and checksum.startswith(f"{length}-")

    def _matches(self, path: Path, name: str) -> bool | None:
        if self._checksums is None:
            return False if os.path.lexists(path) else None
        checksum = self._checksums.of(name)
        if checksum is None:
            if not os.path.lexists(path):
                return None
            # The block may have been fetched again between the two looks, its checksum first.
            checksum = self._checksums.of(name)
        return checksum is not None and file_matches(path, checksum)

    def _adopted(self, name: str) -> Path:
        return self._folder / f"{_ADOPTED}{name}"

    def _forget(self, name: str) -> None:
        if self._checksums is not None:
            self._checksums.forget(name)
        if self._heads is not None:
            (self._heads / name).unlink(missing_ok=True)


def block_name(file_name: str) -> str:
    """Return the name of the block in a file, which may be one that is not verified yet."""
    return file_name.removeprefix(_ADOPTED)


def _written_badly(error: OSError, path: Path) -> CacheFull | LocalFileError:
    if error.errno in _FULL:
        return FileSystemFull(f"cannot write to {path.parent}: {error.strerror}")
    return LocalFileError(f"cannot write {path}: {error.strerror}")


def _fill(folder: Path, name: str, data: memoryview, recycled: RecycledFile | None) -> None:
    """Write the data to a recycled or a new file and give the file its name."""
    path = folder / f".{name}.{os.urandom(4).hex()}" if recycled is None else recycled.path
    try:
        if recycled is None:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            fd = os.dup(recycled.fd)
        try:
            os.posix_fallocate(fd, 0, len(data))
            _write_all(fd, data)
            if recycled is not None:
                os.ftruncate(fd, len(data))
            os.fchmod(fd, _COMPLETE_MODE)
        finally:
            os.close(fd)
        os.rename(path, folder / name)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _written_badly(error, path) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _complete_files(folder: Path) -> dict[str, int]:
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                os.unlink(entry.path)
                continue
            file = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(file.st_mode) and file.st_size:
                found[entry.name] = file.st_size
    return found


def map_block(folder: Path, name: str, length: int) -> mmap.mmap | None:
    """Return a read-only map of a cache block, or None if its file is missing.

    It takes 10 µs, and 0.25 ms for the page faults of all bytes of 4 MiB. MAP_POPULATE takes 0.4 ms
    at once instead: the kernel maps 16 pages a fault, but populates page by page.

    The map keeps no descriptor open, so thousands of maps do not meet the limit on descriptors
    (often 1,024).
    """
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size != length:
            log.warning(
                "%s has %d bytes instead of %d and is not used", folder / name, size, length
            )
            return None
        return _map(fd, length)
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], done)


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_MAP_FIXED: Final = 0x10


def _map(fd: int, length: int) -> mmap.mmap:
    """Map a file over an anonymous map, so that no descriptor stays open.

    `mmap.mmap` of a file keeps a duplicate of its descriptor (until Python 3.13).
    """
    view = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    address = np.frombuffer(view, np.uint8).ctypes.data
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(address, length, mmap.PROT_READ, flags, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return view

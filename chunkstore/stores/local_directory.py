"""An object store in a local directory: the default, and the way onto any POSIX file system.

An object is written to a temporary file, synced, and linked to its name (which fails if the name is
taken: the create-only step); then its directory is synced. The hash of a key's last component
spreads objects over 256 folders, so that no folder grows with the number of chunks:
`datasets/d/chunks/<id>` is stored at `datasets/d/chunks/<xx>/<id>`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Denied,
    NoStoreYet,
    NotFound,
    StoreFull,
    Unavailable,
)
from chunkstore.stores.direct_write import DirectWriter, gathered
from chunkstore.stores.object_store import Buffer, ObjectInfo

_log = logging.getLogger(__name__)
_TEMPORARY = ".temporary"
_ABANDONED_AFTER_S = 24 * 3600
"""Seconds without a write after which a temporary file belongs to a process that was killed."""
_DROPPED_FROM_BYTES = 1 << 20
"""The size from which a read drops its bytes from the page cache.

A caller that reads this much keeps it; the page cache would be a second copy, and a mount has
better use for the memory.
"""
_FAN = re.compile("[0-9a-f]{2}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class LocalDirectory:
    """An `ObjectStore` under the folder `root`.

    The first `create` makes the folder if its parent exists, and logs a warning.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._synced_folders: set[str] = set()

    def __reduce__(self) -> tuple[type[LocalDirectory], tuple[Path]]:
        return type(self), (self.root,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object: temporary file, sync, link, sync of the folder."""
        path = self._path(key)
        temporary = f"{self.root}/{_TEMPORARY}/{os.urandom(12).hex()}"
        with self._translated(key, creating=True):
            self._make_root()
            self._make_folder(os.path.dirname(path))
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                # This is outside of the translation: an OSError of the source is not one of the
                # store.
                writer = DirectWriter(fd)
                for block in gathered(parts):
                    with self._translated(key, creating=True):
                        writer.write(block)
                with self._translated(key, creating=True):
                    writer.finish()
            finally:
                os.close(fd)
            with self._translated(key, creating=True):
                os.link(temporary, path)
        finally:
            with suppress(OSError):  # the caller must get the error from before
                os.unlink(temporary)
        with self._translated(key, creating=True):
            _sync_folder(os.path.dirname(path))

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        with self._translated(key), open(self._path(key), "rb", buffering=0) as file:
            return _read_all(file.fileno(), 0, os.fstat(file.fileno()).st_size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a range of an object."""
        with self._translated(key), open(self._path(key), "rb", buffering=0) as file:
            return _read_all(file.fileno(), offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; raise `Unavailable` if there is no store.

        A fan-out folder may be read before the next number of an object is created in it, and that
        of the former number after this is deleted (`numbered_objects`). So a folder without objects
        is read twice: a lease that is renewed meanwhile must not look like one that has ended.
        """
        top = f"{self.root}/{prefix}".rstrip("/")
        empty: dict[str, str] = {}
        """Folder -> the start of its keys, while no object was found in it."""
        with self._translated(prefix):
            self._check_root()
            for folder, folders, names in os.walk(top, onerror=_raise_unless_absent):
                if folder == str(self.root):
                    folders[:] = [name for name in folders if name != _TEMPORARY]
                    continue
                own = f"{os.path.relpath(folder, self.root)}/"
                if own.startswith(prefix) and any(map(_FAN.fullmatch, folders)):
                    empty[folder] = own
                above = os.path.dirname(folder)
                parent = os.path.relpath(above, self.root)
                start = "" if parent == "." else f"{parent}/"
                if not start.startswith(prefix):  # a fan-out folder with the name of the prefix
                    continue
                for info in _objects(folder, names, start):
                    empty.pop(above, None)
                    yield info
            for folder, start in empty.items():
                for fan in filter(_FAN.fullmatch, _names(folder, folders=True)):
                    path = f"{folder}/{fan}"
                    yield from _objects(path, _names(path, folders=False), start)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of folders; one may have lost its objects."""
        with self._translated(prefix):
            self._check_root()
            try:
                entries = list(os.scandir(f"{self.root}/{prefix}"))
            except FileNotFoundError:
                return []
            return [entry.name for entry in entries if entry.is_dir() and _has_folder(entry.path)]

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one of the objects directly below a prefix. No object is read."""
        with self._translated(prefix):
            self._check_root()
            folder = f"{self.root}/{prefix}".rstrip("/")
            fans = filter(_FAN.fullmatch, _names(folder, folders=True))
            names = (name for fan in fans for name in _names(f"{folder}/{fan}", folders=False))
            return [key for name in names if (key := f"{prefix}{name}") > after]

    def delete(self, key: str) -> None:
        """Delete an object and sync its folder."""
        with self._translated(key), suppress(FileNotFoundError):
            path = self._path(key)
            os.unlink(path)
            _sync_folder(os.path.dirname(path))

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object."""
        with self._translated(key):
            return ObjectInfo(key, os.stat(self._path(key)).st_size)

    def temporary_files(self, older_than_s: float) -> tuple[ObjectInfo, ...]:
        """Return the files of killed writers by age since the last write (`HasTemporaryFiles`)."""
        found = []
        folder = f"{self.root}/{_TEMPORARY}"
        with self._translated(_TEMPORARY):
            try:
                entries = list(os.scandir(folder))
            except FileNotFoundError:
                return ()
            for entry in entries:
                with suppress(FileNotFoundError):
                    file = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(file.st_mode) and time.time() - file.st_mtime >= older_than_s:
                        found.append(ObjectInfo(entry.name, file.st_size))
        return tuple(found)

    def remove_temporary_file(self, name: str) -> None:
        """Remove one of `temporary_files`."""
        with self._translated(_TEMPORARY), suppress(FileNotFoundError):
            os.unlink(f"{self.root}/{_TEMPORARY}/{os.path.basename(name)}")

    def _path(self, key: str) -> str:
        folder, slash, name = key.rpartition("/")
        fan = f"{xxhash.xxh3_64_intdigest(name.encode()) & 0xFF:02x}"
        return f"{self.root}/{folder}{slash}{fan}/{name}"

    def _make_root(self) -> None:
        root = str(self.root)
        if root in self._synced_folders:
            return
        with suppress(FileExistsError):
            os.mkdir(root)
            # Without the warning, a typing error in the name or a disk that is not mounted would go
            # unnoticed.
            _log.warning("created a new store at %s", root)
        with suppress(FileExistsError):
            os.mkdir(f"{root}/{_TEMPORARY}")
        with suppress(ChunkStoreError):
            for abandoned in self.temporary_files(_ABANDONED_AFTER_S):
                self.remove_temporary_file(abandoned.key)
        with suppress(PermissionError):  # the parent may be searched but not read
            _sync_folder(os.path.dirname(os.path.abspath(root)))
        self._synced_folders.add(root)

    def _make_folder(self, folder: str) -> None:
        """Make `folder` and its ancestors up to the root, durably; once per folder and process.

        The method syncs the parent of an existing folder too: its maker may not have synced it yet.
        """
        if folder in self._synced_folders:
            return
        parent = os.path.dirname(folder)
        self._make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        _sync_folder(parent)
        self._synced_folders.add(folder)

    def _check_root(self) -> None:
        self._check_root_parent()
        if not self.root.is_dir():
            raise NoStoreYet(
                f"there is no store at {self.root}: check --store, or pack a dataset first"
            )

    @contextmanager
    def _translated(self, key: str, *, creating: bool = False) -> Iterator[None]:
        try:
            yield
        except ChunkStoreError:
            raise
        except FileNotFoundError as error:
            self._check_root()
            if creating:
                raise Unavailable(
                    f"a folder of the store at {self.root} was removed during a write"
                ) from error
            raise NotFound(f"{key} is not in the store at {self.root}") from error
        except FileExistsError as error:
            raise AlreadyExists(key) from error
        except OSError as error:
            raise _translate(error, f"{self.root}/{key}") from error

    def _check_root_parent(self) -> None:
        if not self.root.parent.is_dir():
            raise Unavailable(
                f"there is no store at {self.root}: its parent folder does not exist; check --store"
            )


def _translate(error: OSError, what: str) -> ChunkStoreError:
    reason = f"{what}: {error.strerror}"
    if error.errno in _FULL:
        return StoreFull(f"{reason}; free space, then run the same command again")
    if error.errno in _DENIED:
        return Denied(f"{reason}; check the owner and mode of the store's folder")
    return Unavailable(reason)


def _raise_unless_absent(error: OSError) -> None:
    """Raise the error of a listing unless the folder does not exist.

    A missing folder is not listed, but an unreadable folder is not an empty one.
    """
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        raise error


def _objects(folder: str, names: Iterable[str], start: str) -> Iterator[ObjectInfo]:
    """Yield the files of a fan-out folder that have these names; keys begin with `start`."""
    for name in names:
        with suppress(FileNotFoundError):
            yield ObjectInfo(f"{start}{name}", os.stat(f"{folder}/{name}").st_size)


def _names(folder: str, *, folders: bool) -> Sequence[str]:
    """Return the names of the folders in a folder, or those of its files."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir() == folders]
    except FileNotFoundError:
        return ()


def _has_folder(path: str) -> bool:
    """Return whether the folder has another one in it, as all but fan-out folders do."""
    with os.scandir(path) as entries:
        return any(entry.is_dir() for entry in entries)


def _read_all(fd: int, offset: int, length: int) -> bytes:
    """Return up to `length` bytes, fewer only at the end of the file.

    One pread may return less than 2 GiB, or less than requested.
    """
    data = os.pread(fd, length, offset)
    if length >= _DROPPED_FROM_BYTES and hasattr(os, "posix_fadvise"):  # macOS has none
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    if len(data) == length or not data:
        return data
    blocks = [data]
    while data and (missing := length - sum(map(len, blocks))):
        data = os.pread(fd, missing, offset + length - missing)
        blocks.append(data)
    return b"".join(blocks)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

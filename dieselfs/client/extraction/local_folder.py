"""Writing below one local folder and nowhere else.

The names in the dataset and the links in the folder cannot change that. Each directory on the way
is opened by its parent's descriptor with O_NOFOLLOW, so that a symbolic link is refused and never
followed, even if it appears while this runs. A file is written under a temporary name in its
directory and renamed when it is complete, with mode and mtime set. A link in the place of the file
is replaced, not followed. A symbolic link is made only if it leads nowhere but below the folder
(`chunkstore.link_targets`). Set-id and sticky bits are not restored.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from chunkstore.link_targets import target_problem
from dieselfs.errors import LocalFileError

PERMISSIONS: Final = 0o777
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORIES: Final = 256
"""The directories that are kept open, of 1,024 descriptors that a process may usually have.

The files of a chunk are of many directories, so each directory is written into again and again.
"""
_numbers: Final = itertools.count()
_REFUSED: Final = frozenset(("", ".", ".."))

_temporary_prefix = ""


def renew_temporary_names() -> None:
    """Draw the beginning of temporary names. A forked process must have another than its parent."""
    global _temporary_prefix
    _temporary_prefix = f".dlcmd-{os.urandom(8).hex()}-"


renew_temporary_names()


class LinkLeadsOutside(LocalFileError):
    """A symbolic link of a dataset may lead out of the folder, and is not made."""


class LocalFolder:
    """The folder `root`, made if its parent exists. Paths are relative to it. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.existed = root.is_dir()
        self._made: set[str] = set()
        """The directories that were made here, which had nothing in them."""
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OutputDirectory] = OrderedDict()
        """The directories that were written into last."""
        with _explained(root):
            if not self.existed and not root.exists():
                root.mkdir(mode=0o755)
                self._made.add("")
            # The user names the root itself, so a link there may be followed.
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the descriptors."""
        self._open.clear()
        os.close(self._fd)

    def make_directory(self, path: str) -> None:
        """Make the directory `path` and its parents, writable for us until `restore_directory`."""
        os.close(self._open_directory(_components(path), make=True))

    def was_made(self, path: str) -> bool:
        """Return True if the directory `path` ('' is the root) was made here, so was empty then."""
        return path in self._made

    @contextmanager
    def directory(self, path: str) -> Iterator[OutputDirectory]:
        """Yield the directory `path` ('' is the root), made if it is missing, to write into it."""
        with self._lock:
            directory = self._open.get(path)
            if directory is not None:
                self._open.move_to_end(path)
        if directory is None:
            fd = self._open_directory(_components(path) if path else [], make=True)
            directory = OutputDirectory(self.root / path, fd)
            with self._lock:
                self._open[path] = directory
                if len(self._open) > _OPEN_DIRECTORIES:
                    self._open.popitem(last=False)
        yield directory

    def restore_directory(self, path: str, mode: int, mtime_ns: int) -> None:
        """Set the mode and mtime of a directory ('' is the root).

        Call it when nothing more is written into the directory.
        """
        fd = self._open_directory(_components(path) if path else [], make=False)
        try:
            with _explained(self.root / path):
                os.fchmod(fd, mode & PERMISSIONS)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(fd)

    def _open_directory(self, parts: Sequence[str], make: bool) -> int:
        """Open root/parts component by component. The caller closes the descriptor."""
        fd = os.dup(self._fd)
        for depth in range(1, len(parts) + 1):
            way = parts[:depth]
            try:
                below = self._enter(way, fd, make)
            except OSError as error:
                raise _explanation(self.root.joinpath(*way), error) from error
            finally:
                os.close(fd)
            fd = below
        return fd

    def _enter(self, parts: Sequence[str], parent: int, make: bool) -> int:
        name = parts[-1]
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            self._made.add("/".join(parts))
        return os.open(name, _DIRECTORY, dir_fd=parent)


class OutputDirectory:
    """One open directory that files are written into. Its descriptor is closed with the object.

    A small file costs five system calls: open, write, utimensat, close and rename.
    """

    __slots__ = ("_exact", "_fd", "_path")

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        self._exact: set[int] = set()
        """The permissions that a new file here gets from `open` as they are."""

    def __del__(self) -> None:
        os.close(self._fd)

    def is_same(self, name: str, size: int, mtime_ns: int, *, is_link: bool = False) -> bool:
        """Return True if a regular file of that size and mtime is here already.

        With `is_link`, it must be a symbolic link.
        """
        _require_name(name)
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        same = (found.st_size, found.st_mtime_ns) == (size, mtime_ns)
        return same and (stat.S_ISLNK if is_link else stat.S_ISREG)(found.st_mode)

    def write_file(
        self, name: str, mode: int, mtime_ns: int, content: Iterable[bytes | memoryview]
    ) -> int:
        """Write a file from its parts, in order, and return its length.

        It is here if the call returns. If it raises, nothing of the file is left. Raises
        `LocalFileError`, and what `content` raises.
        """
        _require_name(name)
        temporary = f"{_temporary_prefix}{next(_numbers)}"
        permissions = mode & PERMISSIONS
        try:
            fd = os.open(temporary, _NEW_FILE, permissions, dir_fd=self._fd)
        except OSError as error:
            raise _explanation(self._path / name, error) from error
        try:
            try:
                size = _fill(fd, content)
                if permissions not in self._exact:
                    self._permit(fd, permissions)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException as error:
            self._give_up(temporary, name, error)
            raise
        return size

    def _permit(self, fd: int, permissions: int) -> None:
        """Give a new file its permissions, if the umask or an ACL of the directory took some."""
        if stat.S_IMODE(os.fstat(fd).st_mode) == permissions:
            self._exact.add(permissions)
        else:
            os.fchmod(fd, permissions)

    def make_link(self, name: str, target: bytes, mtime_ns: int, depth: int) -> None:
        """Make a symbolic link, in the place of a file or link if there is one.

        `depth` is the number of directories between the folder and the link. Raises
        `LinkLeadsOutside` for a target that may lead out of the folder.
        """
        _require_name(name)
        problem = target_problem(target, depth)
        if problem is not None:
            raise LinkLeadsOutside(
                f"the symbolic link to {os.fsdecode(target)!r} was not made: {problem}",
                "get a directory that holds both, if the target is relative",
            )
        temporary = f"{_temporary_prefix}{next(_numbers)}"
        try:
            os.symlink(target, os.fsencode(temporary), dir_fd=self._fd)
            os.utime(temporary, ns=(mtime_ns, mtime_ns), dir_fd=self._fd, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException as error:
            self._give_up(temporary, name, error)
            raise

    def _give_up(self, temporary: str, name: str, error: BaseException) -> None:
        """Remove what was to get the name. Raises the explanation of an `OSError`."""
        with suppress(OSError):
            os.unlink(temporary, dir_fd=self._fd)
        if isinstance(error, OSError):
            raise _explanation(self._path / name, error) from error


def _fill(fd: int, content: Iterable[bytes | memoryview]) -> int:
    size = 0
    for part in content:
        written = os.write(fd, part)
        while written < len(part):
            written += os.write(fd, memoryview(part)[written:])
        size += written
    return size


def _components(path: str) -> list[str]:
    """Split a path, and refuse one that the maker of the snapshot aimed outside of the folder."""
    components = path.split("/")
    if "\0" in path or not _REFUSED.isdisjoint(components):
        raise _outside(path)
    return components


def _require_name(name: str) -> None:
    """Refuse a name that leads elsewhere."""
    if len(_components(name)) != 1:
        raise _outside(name)


def _outside(path: str) -> LocalFileError:
    return LocalFileError(
        f"{path!r} would lie outside of the folder",
        "verify the snapshot that names it: `dlcmd snapshot verify`",
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn local errors into `LocalFileError`."""
    try:
        yield
    except OSError as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: OSError) -> LocalFileError:
    """Return the error for the user: which path, why, and what to do."""
    if error.errno in (errno.ENOTDIR, errno.ELOOP) and path.is_symlink():
        return LocalFileError(f"{path} is a symbolic link, which is not followed", "remove it")
    if error.errno == errno.ENOTDIR:
        return LocalFileError(f"{path} is not a directory", "remove it, or choose another folder")
    hint = (
        "free space, then run the same command again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else None
    )
    return LocalFileError(f"{path}: {error.strerror}", hint)

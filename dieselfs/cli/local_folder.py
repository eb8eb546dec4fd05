"""Writing below one local folder and nowhere else.

The names in the dataset and the links in the folder cannot change that. Each directory on the way
is opened by its parent's descriptor with O_NOFOLLOW, so that a symbolic link is refused and never
followed, even if it appears while this runs. A file is written under a temporary name in its
directory and renamed when it is complete, with mode and mtime set. A link in the place of the file
is replaced, not followed. Set-id and sticky bits are not restored.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from dieselfs.errors import LocalFileError

PERMISSIONS: Final = 0o777
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY_PREFIX: Final = ".dlcmd-"


class LocalFolder:
    """The folder `root`, made if its parent exists. Paths are relative to it. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.existed = root.is_dir()
        with _explained(root):
            if not self.existed and not root.exists():
                root.mkdir(mode=0o755)
            # The user names the root itself, so a link there may be followed.
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the descriptor of the root."""
        os.close(self._fd)

    def make_directory(self, path: str) -> None:
        """Make the directory `path` and its parents, writable for us until `restore_directory`."""
        os.close(self._open_directory(_components(path), make=True))

    def is_same(self, path: str, size: int, mtime_ns: int) -> bool:
        """Return True if a regular file of that size and mtime is at `path` already."""
        *parents, name = _components(path)
        try:
            with self._parent(parents, make=False) as parent:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (LocalFileError, OSError):
            return False
        return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (
            size,
            mtime_ns,
        )

    @contextmanager
    def new_file(self, path: str, mode: int, mtime_ns: int) -> Iterator[BinaryIO]:
        """Yield a file to write.

        It is at `path` if the block ends well. Otherwise nothing of it is left.
        """
        *parents, name = _components(path)
        with _explained(self.root / path), self._parent(parents, make=True) as parent:
            temporary = _TEMPORARY_PREFIX + secrets.token_hex(8)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=parent)
            try:
                with open(fd, "wb") as file:
                    yield file
                    file.flush()
                    os.fchmod(fd, mode & PERMISSIONS)
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise

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

    @contextmanager
    def _parent(self, parts: Sequence[str], make: bool) -> Iterator[int]:
        fd = self._open_directory(parts, make)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_directory(self, parts: Sequence[str], make: bool) -> int:
        """Open root/parts component by component. The caller closes the descriptor."""
        fd = os.dup(self._fd)
        for depth, name in enumerate(parts, 1):
            try:
                with _explained(self.root.joinpath(*parts[:depth])):
                    below = _enter(name, fd, make)
            finally:
                os.close(fd)
            fd = below
        return fd


def _components(path: str) -> list[str]:
    """Split a path, and refuse one that the maker of the snapshot aimed outside of the folder."""
    components = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in components):
        raise LocalFileError(
            f"{path!r} would lie outside of the folder",
            "verify the snapshot that names it: `dlcmd snapshot verify`",
        )
    return components


def _enter(name: str, parent: int, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn local errors into `LocalFileError`.

    Other errors, such as those of the store while a file is written, pass through.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and path.is_symlink():
            raise LocalFileError(
                f"{path} is a symbolic link, which is not followed", "remove it"
            ) from error
        if error.errno == errno.ENOTDIR:
            raise LocalFileError(
                f"{path} is not a directory", "remove it, or choose another folder"
            ) from error
        hint = (
            "free space, then run the same command again"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else None
        )
        raise LocalFileError(f"{path}: {error.strerror}", hint) from error

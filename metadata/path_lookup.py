"""The look-up from a path to its file or directory, in a snapshot's map.

It is the most frequent look-up of all. The C extension `metadata._path_lookup` finds files, if it
was built: the time goes to memory that is in no cache of the processor, and Python adds more such
memory. Without the extension this module does the same, with slots, one function without calls of
our own, and columns read through memoryviews (an int in 35 ns, where a numpy scalar takes 100): 0.6
µs a file when the columns are in the processor's cache.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.paths import MAX_PATH_BYTES
from metadata import path_index
from metadata.errors import SnapshotRefused
from metadata.snapshot_format import SnapshotHeader

_import_error: str | None = None
try:
    from metadata import _path_lookup as extension
except ImportError as error:
    extension = None  # type: ignore[assignment]
    _import_error = str(error)

_DIRECTORIES_KEPT: Final = 4096
"""The paths of directories kept as Python objects, which saves a tenth of a look-up.

They are bounded, as is all memory beside the map.
"""
EXTENSION_SECTIONS: Final = (
    "file_index",
    "parent",
    "name_at",
    "name_bytes",
    "names",
    "directory_path_at",
    "directory_paths",
    "chunk",
    "offset",
    "length",
)
"""The sections that the extension gets, in this order."""
_digest = xxhash.xxh3_64_intdigest


class PathLookup:
    """The look-up of paths in Python.

    Paths are relative to the root, without a slash at either end. A `str` means its UTF-8, as in
    `encoded`. Every candidate's name is compared, so a damaged index finds nothing.
    """

    __slots__ = (
        "_directory_index",
        "_directory_path_at",
        "_directory_reach",
        "_directory_slots",
        "_ended_paths",
        "_file_index",
        "_file_reach",
        "_file_slots",
        "_map",
        "_name_at",
        "_name_bytes",
        "_names_start",
        "_parent",
        "_paths_start",
    )

    def __init__(
        self,
        header: SnapshotHeader,
        map_: mmap.mmap,
        numbers: Callable[[str], memoryview[int]],
    ) -> None:
        """`numbers` returns a column by its name."""
        self._map = map_
        self._parent = numbers("parent")
        self._name_at = numbers("name_at")
        self._name_bytes = numbers("name_bytes")
        self._names_start = header.sections["names"][0]
        self._directory_path_at = numbers("directory_path_at")
        self._paths_start = header.sections["directory_paths"][0]
        self._file_index = numbers("file_index")
        self._file_reach = header.file_index_reach
        self._file_slots = path_index.slot_count(header.files)
        self._directory_index = numbers("directory_index")
        self._directory_reach = header.directory_index_reach
        self._directory_slots = path_index.slot_count(header.directories)
        self._ended_paths: dict[int, bytes] = {}

    def file(self, path: str | bytes, /) -> int | None:
        """Return the inode of a file's path, None if no file has that path."""
        if isinstance(path, str):
            path = encoded(path)
        try:
            return self._file(path)
        except IndexError as error:
            raise _damaged("its index of files has a number out of bounds") from error

    def _file(self, path: bytes) -> int | None:
        table = self._file_index
        at = (_digest(path) >> 32) * self._file_slots >> 32  # path_index.home_slots for one path
        entry = table[at]
        end = at + self._file_reach
        while entry:
            inode = entry - 1
            try:
                directory = self._ended_paths[self._parent[inode]]
            except KeyError:
                directory = self.ended_path(self._parent[inode])
            start = self._names_start + self._name_at[inode]
            if directory + self._map[start : start + self._name_bytes[inode]] == path:
                return inode
            at += 1
            if at == end:
                break
            entry = table[at]
        return None

    def is_path_of(self, inode: int, path: str | bytes, /) -> bool:
        """Return whether a file has this path: half the cost of finding it.

        The result is False for a negative inode. Raises `IndexError` beyond the files.
        """
        if inode < 0:
            return False
        if isinstance(path, str):
            path = encoded(path)
        start = self._names_start + self._name_at[inode]
        name = self._map[start : start + self._name_bytes[inode]]
        return self.ended_path(self._parent[inode]) + name == path

    def files(self, paths: Sequence[str | bytes], /) -> list[int | None]:
        """Return `file` of each path."""
        return [self.file(path) for path in paths]

    def text(self, inodes: npt.NDArray[np.int64], /) -> bytes | None:
        """Return the paths of files, each ended by NUL; None if only numpy can tell.

        `metadata.snapshot_bulk` does the same, in four times the time, and says what is damaged.
        """
        return None

    def directory(self, path: bytes) -> int | None:
        """Return the number of a directory's path, None if no directory has it.

        The root's path is b''.
        """
        place = (_digest(path) >> 32) * self._directory_slots >> 32
        for at in range(place, min(place + self._directory_reach, len(self._directory_index))):
            entry = self._directory_index[at]
            if not entry:
                return None
            if self.ended_path(entry - 1)[:-1] == path:
                return entry - 1
        return None

    def ended_path(self, directory: int) -> bytes:
        """Return the path of a directory with the `/` that ends it; the root's is empty."""
        path = self._ended_paths.get(directory)
        if path is None:
            try:
                start = self._directory_path_at[directory]
                end = self._directory_path_at[directory + 1]
            except IndexError as error:
                raise _damaged(f"it has no directory {directory}") from error
            if not start <= end <= start + MAX_PATH_BYTES + 1:
                raise _damaged("a directory's path has an impossible length")
            path = self._map[self._paths_start + start : self._paths_start + end]
            if len(self._ended_paths) >= _DIRECTORIES_KEPT:
                self._ended_paths.clear()
            self._ended_paths[directory] = path
        return path


def _damaged(problem: str) -> SnapshotRefused:
    return SnapshotRefused(f"the snapshot is damaged: {problem}")


def encoded(path: str) -> bytes:
    """Return the UTF-8 bytes of a path, with undecodable ones escaped as `os.fsencode` does.

    The locale does not matter. Raises `UnicodeEncodeError` for a string that no bytes decode to.
    """
    try:
        return path.encode()  # 70 ns less than with a named error handler
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")


class CompiledPathLookup(PathLookup):
    """The look-up of paths in C.

    It takes 0.1 µs a file when the columns are in the processor's cache. In 1.28 million files in
    random order it takes 0.9 µs each, and 0.55 µs when some hundreds are asked for at once, where
    Python takes 2.7 µs.
    """

    __slots__ = ("file", "files", "is_path_of", "text")
    file: Callable[[str | bytes], int | None]
    files: Callable[[Sequence[str | bytes]], list[int | None]]
    is_path_of: Callable[[int, str | bytes], bool]
    text: Callable[[npt.NDArray[np.int64]], bytes | None]

    def __init__(
        self,
        header: SnapshotHeader,
        map_: mmap.mmap,
        numbers: Callable[[str], memoryview[int]],
    ) -> None:
        super().__init__(header, map_, numbers)
        sections = map(numbers, EXTENSION_SECTIONS)
        found = extension.FileLookup(header.file_index_reach, _digest, *sections)
        self.file = found.file
        self.files = found.files
        self.is_path_of = found.is_path_of
        self.text = getattr(found, "text", super().text)  # a former build lacks it


def why_in_python() -> str | None:
    """Return why look-ups run in Python, in words for a user; None if the extension is loaded."""
    if _import_error is None:
        return None
    folder = Path(__file__).parent
    built = sorted(path.name for path in folder.glob("_path_lookup.*") if path.suffix == ".so")
    if not built:
        return f"it was not built, there is none in {folder}"
    if any(f"_path_lookup{suffix}" in built for suffix in EXTENSION_SUFFIXES):
        return f"it cannot be loaded: {_import_error}"
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{', '.join(built)} in {folder} is for another Python than this {version}"


def path_lookup(
    header: SnapshotHeader, map_: mmap.mmap, numbers: Callable[[str], memoryview[int]]
) -> PathLookup:
    """Return the compiled look-up if the extension is there, else the one in Python."""
    kind = PathLookup if extension is None else CompiledPathLookup
    return kind(header, map_, numbers)

"""A snapshot: one dataset's metadata at one generation in one immutable local file.

It holds names, attributes and the position of each file. Opening maps the file and reads a header;
look-ups read the map in place. So opening takes a fraction of a millisecond whatever the size, all
processes of the node share one copy, and nothing needs a lock: a snapshot may be used from any
thread and after a fork. `verify` finds damage inside a section when a file enters the node. Beyond
that every number is checked where it is used as an index, so that a bad file yields
`SnapshotRefused`, and no loop without an end.

Snapshots are published by rename under a name of their own and never written again. If a program
writes to one or truncates it nevertheless, `check_unchanged` finds out (docs/decisions/0040).
Readers call it between reading columns and using what they read. A snapshot must not be on a
network file system.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef, are_links
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from metadata import snapshot_bulk, snapshot_verification
from metadata.errors import SnapshotClosed, SnapshotRefused
from metadata.mapped_file import MappedFile, guarded
from metadata.path_lookup import PathLookup, encoded, path_lookup
from metadata.snapshot_format import (
    DIRECTORY_BASE,
    MAX_HEADER_BYTES,
    Columns,
    SnapshotHeader,
    decode_header,
    map_columns,
)

ROOT: Final = DIRECTORY_BASE
"""The inode of the root directory."""
_LISTED_AT_ONCE: Final = 1024
"""The names of a large directory that a listing decodes ahead.

A reader that stops early pays for no more.
"""
_SEPARATORS: Final = (b"\0", b"\n")
_CHUNKS_KEPT: Final = 4096
_FORMATS: Final[dict[tuple[int, str], Literal["B", "H", "I", "Q", "q"]]] = {
    (1, "u"): "B",
    (2, "u"): "H",
    (4, "u"): "I",
    (8, "u"): "Q",
    (8, "i"): "q",
}


class Snapshot:
    """An open snapshot. It is a context manager, or is left to the garbage collector.

    It pickles as its path.
    """

    def __init__(
        self, path: Path, header: SnapshotHeader, map_: mmap.mmap, file: MappedFile
    ) -> None:
        """Do not call this: use `Snapshot.open`."""
        self.path = path
        self.header = header
        self._map = map_
        self._file = file
        self.is_unchanged = file.is_unchanged
        """False if `check_unchanged` must look closer: for readers that cannot spare its call."""
        self._is_damaged = False
        self._checking = threading.Lock()
        self.columns: Columns = map_columns(header, memoryview(map_))
        """Every column as a numpy view of the map, for work in bulk. Valid until `close`."""

        self._offset = self.numbers("offset")
        self._length = self.numbers("length")
        self._hash = self.numbers("hash")
        self._mtime_ns = self.numbers("mtime_ns")
        self._mode = self.numbers("mode")
        self._chunk = self.numbers("chunk")
        self._parent = self.numbers("parent")
        self._name_at = self.numbers("name_at")
        self._name_bytes = self.numbers("name_bytes")
        self._names_start = header.sections["names"][0]
        self._chunk_head_bytes = self.numbers("chunk_head_bytes")
        self._chunk_payload_bytes = self.numbers("chunk_payload_bytes")
        self._chunk_first_inode = self.numbers("chunk_first_inode")
        self._directory_parent = self.numbers("directory_parent")
        self._directory_mode = self.numbers("directory_mode")
        self._directory_mtime_ns = self.numbers("directory_mtime_ns")
        self._directory_first_file = self.numbers("directory_first_file")
        self._directory_file_count = self.numbers("directory_file_count")
        self._directory_first_directory = self.numbers("directory_first_directory")
        self._directory_directory_count = self.numbers("directory_directory_count")
        self.paths = path_lookup(header, map_, self.numbers)
        """The look-up of files by path, without the conveniences of `resolve`."""
        self._chunk_refs: dict[int, ChunkRef] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map the file and check its header in well under 1 ms.

        The checks cover magic, version, checksum, length, and the bounds of every section. Raises
        `SnapshotRefused` with the reason, or `OSError` if there is no file to read.
        """
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = decode_header(file.read(MAX_HEADER_BYTES), size)
            try:
                map_ = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            except ValueError as error:  # it is shorter than a moment ago
                raise SnapshotRefused(f"{path} was truncated: {error}") from error
            return cls(Path(path), header, map_, guarded(map_, file.fileno()))

    @classmethod
    def verify(cls, path: str | os.PathLike[str]) -> None:
        """Check everything, for a file that was built, pulled or is suspect; about 1 µs a file.

        The checks are those of `open`, the whole file's hash, and that every number, name and path
        is in bounds and in order. Raises `SnapshotRefused` with the reason.
        """
        snapshot_verification.check_file_hash(path)
        with cls.open(path) as snapshot:
            snapshot_verification.check_content(snapshot.header, snapshot.columns)

    def close(self) -> None:
        """Release the map; later uses of the snapshot's content raise `SnapshotClosed`.

        Arrays that are still referenced elsewhere keep the map alive until they are freed.
        """
        map_ = self.__dict__.pop("_map", None)
        for name in ("_file", "is_unchanged"):
            self.__dict__.pop(name, None)
        for name, value in list(self.__dict__.items()):
            if isinstance(value, memoryview | Columns | PathLookup):
                del self.__dict__[name]
        if map_ is not None:
            try:
                map_.close()
            except BufferError:
                pass  # a column is still referenced: the map goes with the last one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check_unchanged(self) -> None:
        """Raise `SnapshotRefused` if the file was damaged while it is open.

        Columns that were read before the call are sound if it does not raise, but for a change in
        the same tick of the clock. A snapshot that was damaged once stays refused. Costs 0.1 µs;
        after a change of the file's times the whole file is hashed once.
        """
        if not self.is_unchanged():
            self._check_again()

    def _check_again(self) -> None:
        with self._checking:
            while not self.is_unchanged():
                self._is_damaged = self._is_damaged or not self._file.renew()
                self.check_hash()

    def check_hash(self) -> None:
        """Raise `SnapshotRefused` unless the file has the hash of its header; about 10 GB/s.

        It is refused from then on.
        """
        if not self._is_damaged:
            found = snapshot_verification.has_file_hash(self.header, self.content)
            self._is_damaged = not found
        if self._is_damaged:
            self._file.refuse()
            raise SnapshotRefused(f"{self.path} was damaged: remove it, and mount or open it again")

    @property
    def content(self) -> memoryview:
        """The bytes of the file. Valid until `close`."""
        return memoryview(self._map)

    if not TYPE_CHECKING:  # a misspelt attribute stays an error of the type checker

        def __getattr__(self, name: str) -> Any:
            if "_map" not in vars(self):
                raise SnapshotClosed(f"snapshot {vars(self).get('path')} is closed: open it again")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).open, (self.path,)

    def __repr__(self) -> str:
        return f"<Snapshot {self.dataset.name}@{self.id}, {self.file_count} files>"

    def numbers(self, name: str) -> memoryview[int]:
        """Return a column for reading one number at a time; valid until `close`.

        An int takes 35 ns, where a numpy scalar takes 100.
        """
        start, size = self.header.sections[name]
        if not size:
            return memoryview(b"")  # an empty view cannot be cast
        column: npt.NDArray[np.integer] = getattr(self.columns, name)
        whole = memoryview(self._map)
        return whole[start : start + size].cast(_FORMATS[column.itemsize, column.dtype.kind])

    @property
    def dataset(self) -> DatasetRef:
        """The dataset that the snapshot describes."""
        return self.header.dataset

    @property
    def generation(self) -> int:
        """The generation that the snapshot describes."""
        return self.header.generation

    @property
    def updated_ns(self) -> int:
        """The time of the generation's commit, by its writer's clock."""
        return self.header.updated_ns

    @property
    def id(self) -> str:
        """The id `<generation>-<hash of the whole file>`."""
        return self.header.id

    @property
    def file_count(self) -> int:
        """The number of files."""
        return self.header.files

    @property
    def has_links(self) -> bool:
        """True if some of the files are symbolic links."""
        return self.header.has_links

    @property
    def directory_count(self) -> int:
        """The number of directories, including the root."""
        return self.header.directories

    @property
    def chunk_count(self) -> int:
        """The number of chunks that hold a live file."""
        return self.header.chunks

    @property
    def total_bytes(self) -> int:
        """The sum of the files' lengths."""
        return self.header.total_bytes

    # Path → inode

    def resolve(self, path: str | bytes) -> int | None:
        """Return the inode of a path relative to the root, None if there is none; 0.2 to 1 µs.

        '' and '/' are the root. A `str` means its UTF-8 bytes, with undecodable ones escaped as
        `os.fsencode` does, on any locale.
        """
        if isinstance(path, str):
            path = encoded(path)
        inode = self.paths.file(path)
        if inode is not None:
            return inode
        number = self.paths.directory(path)
        if number is not None:
            return DIRECTORY_BASE + number
        return ROOT if path == b"/" else None

    def resolve_many(self, paths: Sequence[str] | Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Return `resolve` for a list: the inodes in the same order, -1 if absent.

        The cost is about 0.4 µs a path; names are compared.
        """
        found = snapshot_bulk.resolve_many(self.header, self.columns, paths)
        self.check_unchanged()
        return found

    def lookup(self, parent_inode: int, name: bytes) -> int | None:
        """Return the inode of `name` in a directory, None if there is none.

        This is the mount's most frequent call: 0.3 to 1 µs.
        """
        parent = self._directory_number(parent_inode)
        path = self.paths.ended_path(parent) + name
        inode = self.paths.file(path)
        # A name with a `/` would lead further down. The kernel never sends one, a caller might.
        if inode is not None:
            return inode if self._parent[inode] == parent else None
        number = self.paths.directory(path)
        if number is not None and number and self._directory_parent[number] == parent:
            return DIRECTORY_BASE + number
        return None

    # Inode → attributes

    @staticmethod
    def is_directory(inode: int) -> bool:
        """Return whether an inode is a directory's."""
        return inode >= DIRECTORY_BASE

    def is_link(self, inode: int) -> bool:
        """Return whether an inode is a symbolic link's; its content is its target."""
        return self.header.has_links and stat.S_ISLNK(self.mode(inode))

    def without_links(self, inodes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return these files without the symbolic links; no work if the snapshot has none."""
        if not self.header.has_links:
            return inodes
        return inodes[~are_links(self.columns.mode[inodes])]

    def regular_files(self) -> npt.NDArray[np.uint32] | None:
        """Return the ascending inodes of the files that are no symbolic links; None if all are.

        The cost is 3 ns a file, and nothing if the snapshot has no links.
        """
        if not self.header.has_links:
            return None
        return self.without_links(np.arange(self.file_count, dtype=np.uint32))

    def _directory_number(self, inode: int) -> int:
        number = inode - DIRECTORY_BASE
        if not 0 <= number < self.header.directories:
            raise IndexError(f"inode {inode} is not a directory of this snapshot")
        return number

    def _file_number(self, inode: int) -> int:
        if not 0 <= inode < self.header.files:
            raise IndexError(f"inode {inode} is not a file of this snapshot")
        return inode

    def mode(self, inode: int) -> int:
        """Return st_mode with its type bits: a directory, a regular file or a symbolic link.

        Raises `SnapshotRefused` for another type: the kernel lets a reader of a FIFO wait forever.
        """
        if inode >= DIRECTORY_BASE:
            mode = self._directory_mode[self._directory_number(inode)]
            is_right = stat.S_ISDIR(mode)
        else:
            mode = self._mode[self._file_number(inode)]
            is_right = stat.S_ISREG(mode) or (self.header.has_links and stat.S_ISLNK(mode))
        if not is_right:
            raise SnapshotRefused(f"{self.path} is damaged: inode {inode} has the mode {mode:o}")
        return mode

    def size(self, inode: int) -> int:
        """Return the length in bytes; 0 for a directory."""
        if inode >= DIRECTORY_BASE:
            self._directory_number(inode)
            return 0
        length = self._length[self._file_number(inode)]
        if length > self.header.total_bytes:
            raise SnapshotRefused(f"{self.path} is damaged: inode {inode} has {length} bytes")
        return length

    def mtime_ns(self, inode: int) -> int:
        """Return the time of the last modification."""
        if inode >= DIRECTORY_BASE:
            return self._directory_mtime_ns[self._directory_number(inode)]
        return self._mtime_ns[self._file_number(inode)]

    def parent(self, inode: int) -> int:
        """Return the inode of the directory above; for the root it is the root."""
        if inode >= DIRECTORY_BASE:
            return DIRECTORY_BASE + self._directory_parent[self._directory_number(inode)]
        return DIRECTORY_BASE + self._parent[self._file_number(inode)]

    def name(self, inode: int) -> bytes:
        """Return the last component of the path; the root's is empty."""
        if inode >= DIRECTORY_BASE:
            return self._directory_path(self._directory_number(inode)).rpartition(b"/")[2]
        start = self._names_start + self._name_at[self._file_number(inode)]
        return self._map[start : start + self._name_bytes[inode]]

    def path_of(self, inode: int) -> bytes:
        """Return the path relative to the root, which is b'' itself."""
        if inode >= DIRECTORY_BASE:
            return self._directory_path(self._directory_number(inode))
        name = self.name(inode)
        directory = self._directory_path(self._parent[inode])
        return directory + b"/" + name if directory else name

    def _directory_path(self, number: int) -> bytes:
        return self.paths.ended_path(number)[:-1]

    def paths_text(self, inodes: npt.NDArray[np.integer], separator: bytes = b"\n") -> bytes:
        """Return the paths of files in the given order, each ended by `separator`.

        The cost is about 0.3 µs a path, and 0.05 with the C extension. Raises `ValueError` if a
        path holds the separator: a name may contain a newline, and such a list would name files
        that do not exist. NUL is in no path and always works. Raises `IndexError` for an inode that
        is not a file's.
        """
        if separator in _SEPARATORS:
            text = self.paths.text(np.ascontiguousarray(inodes, np.int64))
            if text is not None and (separator == b"\0" or separator not in text):
                self.check_unchanged()
                return text.replace(b"\0", separator)
        text = snapshot_bulk.paths_text(self.columns, inodes, separator)
        self.check_unchanged()
        return text

    # Directories

    def child_count(self, inode: int) -> int:
        """Return the number of a directory's children."""
        number = self._directory_number(inode)
        return self._directory_directory_count[number] + self._directory_file_count[number]

    def children(self, inode: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield the (name, inode) of a directory's children from position `start` on.

        Sub-directories come first, then files, each sorted by name. The order never changes, so a
        listing can be resumed at any position in constant time.
        """
        number = self._directory_number(inode)
        directories = self._directory_directory_count[number]
        first = self._directory_first_directory[number]
        for child in range(first + start, first + directories):
            # Otherwise a walk might have no end.
            in_order = number < child < self.directory_count
            if not in_order or self._directory_parent[child] != number:
                raise SnapshotRefused(f"{self.path} is damaged: directory {child} is out of place")
            yield self.name(DIRECTORY_BASE + child), DIRECTORY_BASE + child
        first = self._directory_first_file[number]
        end = first + self._directory_file_count[number]
        for rank in range(first + max(0, start - directories), end, _LISTED_AT_ONCE):
            yield from self._files_by_rank(number, rank, min(end, rank + _LISTED_AT_ONCE))

    def _files_by_rank(self, directory: int, first: int, end: int) -> Iterator[tuple[bytes, int]]:
        """Return the files of one directory.

        Their names lie one after the other, each ended by NUL. Every inode's own record must agree
        that its name is the one here. Otherwise a damaged rank would show a file under another
        file's name.
        """
        columns = self.columns
        inodes = columns.by_name[first:end].astype(np.int64)
        base = self._names_start
        if len(inodes) == end - first and int(inodes.max()) < self.file_count:
            start = columns.name_at[inodes].astype(np.int64)
            stop = start + columns.name_bytes[inodes]
            if (start[1:] == stop[:-1] + 1).all() and (columns.parent[inodes] == directory).all():
                names = self._map[base + int(start[0]) : base + int(stop[-1])].split(b"\0")
                if len(names) == len(inodes):
                    return zip(names, inodes.tolist(), strict=True)
        raise SnapshotRefused(
            f"{self.path} is damaged: the names and files of a directory do not agree"
        )

    # Inode → bytes

    def extent(self, inode: int) -> FileExtent:
        """Return where a file's bytes lie.

        Raises `SnapshotRefused` if that is outside of its chunk.
        """
        number = self._chunk[self._file_number(inode)]
        chunk = self.chunk(number)
        offset, length = self._offset[inode], self._length[inode]
        if inode not in self.files_in_chunk(number) or offset + length > chunk.payload_bytes:
            raise SnapshotRefused(f"{self.path} is damaged: inode {inode} reaches beyond its chunk")
        return FileExtent(chunk, offset, length, self._hash[inode])

    def chunk_number(self, inode: int) -> int:
        """Return the number of the chunk that holds a file."""
        return self._chunk[self._file_number(inode)]

    def chunk(self, number: int) -> ChunkRef:
        """Return a chunk by its number. Raises `SnapshotRefused` if there is no such chunk."""
        ref = self._chunk_refs.get(number)
        if ref is None:
            if not 0 <= number < self.header.chunks:
                raise SnapshotRefused(f"{self.path} is damaged: it has no chunk {number}")
            if len(self._chunk_refs) >= _CHUNKS_KEPT:
                self._chunk_refs.clear()
            ref = self._chunk_refs[number] = ChunkRef(
                ChunkId(self.columns.chunk_id[number].tobytes()),
                self._chunk_head_bytes[number],
                self._chunk_payload_bytes[number],
            )
        return ref

    def file_at(self, chunk: ChunkId, offset: int) -> int | None:
        """Return the inode of the file whose bytes begin there in a chunk; None if none does.

        For messages: it looks through all chunk ids, which takes some ms for a million files.
        """
        numbers = np.flatnonzero(self.columns.chunk_id == np.void(chunk.value))
        if not len(numbers):
            return None
        inodes = self.files_in_chunk(int(numbers[0]))
        of_chunk = slice(inodes.start, inodes.stop)
        begins = self.columns.offset[of_chunk] == offset
        found = np.flatnonzero(begins & (self.columns.length[of_chunk] > 0))
        return inodes.start + int(found[0]) if len(found) else None

    def files_in_chunk(self, number: int) -> range:
        """Return the inodes of the chunk's live files, by position in the chunk."""
        if not 0 <= number < self.header.chunks:
            raise IndexError(f"this snapshot has no chunk {number}")
        first, end = self._chunk_first_inode[number], self._chunk_first_inode[number + 1]
        if not first <= end <= self.header.files:
            raise SnapshotRefused(f"{self.path} is damaged: chunk {number} has impossible inodes")
        return range(first, end)

    @property
    def chunk_first_inode(self) -> npt.NDArray[np.uint32]:
        """The first inodes of the chunks, one more than there are: chunk c holds [c] to [c + 1]."""
        return self.columns.chunk_first_inode

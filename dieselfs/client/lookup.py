"""The answers about names: from the index, or from a snapshot once one is loaded."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import NotFound
from dieselfs.client.path_arguments import (
    NAMES_ARE_UTF8,
    DatasetPath,
    Inodes,
    as_path,
    decoded,
    encoded,
)
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.file_stat import (
    FileStat,
    stat_in,
    stat_of_row,
    stats_of_listing,
    walk_snapshot,
)
from metadata.complete_listing import check_complete, check_directory, complete_walk
from metadata.errors import (
    PathConflict,
    PathIsLink,
    PathNotFound,
    RecordCorrupt,
)
from metadata.kv.evictions import evictions_of
from metadata.namespace import PathEntry
from metadata.snapshot import Snapshot

_Found = TypeVar("_Found")
_COUNTED_FILES: Final = 20_000
"""The most files of a dataset that is counted when a path is not found: a tenth of a second."""


class Lookup(Protocol):
    """The names of one dataset. Paths are encoded; all raise `PathNotFound`."""

    def file_count(self) -> int:
        """Return the number of files."""
        ...

    def stat(self, path: bytes) -> FileStat:
        """Return the attributes of a path."""
        ...

    def ls(self, path: bytes) -> list[FileStat]:
        """Return the children of a directory, directories first; a file gives itself."""
        ...

    def walk(self, path: bytes) -> Iterator[FileStat]:
        """Yield everything below a directory."""
        ...

    def extent(self, path: bytes) -> FileExtent:
        """Return where a file's bytes are.

        Raises `PathConflict` for a directory, and `PathIsLink` for a symbolic link.
        """
        ...

    def link_extent(self, path: bytes) -> FileExtent:
        """Return where a symbolic link's target is; raise `PathConflict` for anything else."""
        ...


def extents_of(names: Lookup, files: Sequence[FileStat]) -> list[FileExtent]:
    """Return where the bytes of several files of one chunk are, given by their attributes.

    One look-up checks them all. Raises `NotFound` if the first file is in another chunk now.
    """
    first = files[0]
    extent = names.link_extent if first.kind == "link" else names.extent
    try:
        chunk = extent(encoded(first.path)).chunk
    except PathConflict as error:  # a path that has another type now
        raise NotFound(f"{first.path} is no longer a {first.kind}") from error
    if str(chunk.id) != first.chunk or any(file.chunk != first.chunk for file in files):
        raise NotFound(f"{first.path} is no longer in chunk {first.chunk}")
    return [FileExtent(chunk, file.offset, file.size, file.hash) for file in files]


class IndexLookup:
    """The names as the index has them now. Implements `Lookup`."""

    def __init__(self, dataset: Dataset) -> None:
        self._namespace = dataset.namespace
        self._in_doubt = evictions_of(dataset.index).records_may_be_missing
        self._has_looked = False

    def file_count(self) -> int:
        """See `Lookup`."""
        return self._namespace.state().files

    def stat(self, path: bytes) -> FileStat:
        """See `Lookup`."""
        entry = self._entry(path)
        return stat_of_row(entry.path, entry.row)

    def ls(self, path: bytes) -> list[FileStat]:
        """See `Lookup`."""
        found = self.stat(path)
        return list(self._children(path)) if found.kind == "directory" else [found]

    def walk(self, path: bytes) -> Iterator[FileStat]:
        """See `Lookup`."""
        for listing in complete_walk(self._namespace, path):
            yield from stats_of_listing(listing)

    def extent(self, path: bytes) -> FileExtent:
        """See `Lookup`."""
        return self._found(path, is_link=False)

    def link_extent(self, path: bytes) -> FileExtent:
        """See `Lookup`."""
        return self._found(path, is_link=True)

    def _entry(self, path: bytes) -> PathEntry:
        self._check_once()
        try:
            return self._namespace.stat(path)
        except PathNotFound:
            self._look_for_lost(path)
            raise

    def _look_for_lost(self, path: bytes) -> None:
        """Raise unless the index is sound where a path is missing; for the first one alone.

        A large dataset is not counted.
        """
        if self._has_looked:
            return
        self._has_looked = True
        check_directory(self._namespace, path.rpartition(b"/")[0])
        if self._namespace.state().files <= _COUNTED_FILES:
            check_complete(self._namespace)

    def _check_once(self) -> None:
        """Raise `RecordsLost` if the index's server may have evicted records, and has.

        A look-up of one path or directory has no total by which it would show that.
        """
        if self._in_doubt:
            check_complete(self._namespace)
            self._in_doubt = False

    def _found(self, path: bytes, *, is_link: bool) -> FileExtent:
        while True:
            entry = self._entry(path)
            _check_kind(path, int(entry.row["mode"]), is_link=is_link)
            try:
                return self._extent_of(entry)
            except RecordCorrupt:
                now = self._namespace.stat(path)
                if bytes(now.row["chunk"]) == bytes(entry.row["chunk"]):
                    raise
                # A purge has moved the file in between: look it up again.

    def _children(self, path: bytes) -> Iterator[FileStat]:
        check_directory(self._namespace, path)
        return stats_of_listing(self._namespace.list(path))

    def _extent_of(self, entry: PathEntry) -> FileExtent:
        row = entry.row
        record = self._namespace.chunk(bytes(row["chunk"]))
        chunk = ChunkRef(ChunkId(bytes(row["chunk"])), record.head_bytes, record.payload_bytes)
        return FileExtent(chunk, int(row["offset"]), int(row["length"]), int(row["hash"]))


def _check_kind(path: bytes, mode: int, *, is_link: bool) -> None:
    """Raise unless the mode is a file's, or with `is_link` a symbolic link's."""
    if stat.S_ISDIR(mode):
        raise PathConflict(f"is a directory: {decoded(path) or '/'}")
    if is_link and not stat.S_ISLNK(mode):
        raise PathConflict(f"is not a symbolic link: {decoded(path)}")
    if stat.S_ISLNK(mode) and not is_link:
        raise PathIsLink(f"is a symbolic link, which is not followed: {decoded(path)}")


class SnapshotLookup:
    """The names of a snapshot, which stays the caller's. Implements `Lookup`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def file_count(self) -> int:
        """See `Lookup`."""
        return self.snapshot.file_count

    def stat(self, path: bytes) -> FileStat:
        """See `Lookup`."""
        return self._sound(stat_in(self.snapshot, self._inode(path)))

    def ls(self, path: bytes) -> list[FileStat]:
        """See `Lookup`."""
        snapshot, inode = self.snapshot, self._inode(path)
        if not snapshot.is_directory(inode):
            return self._sound([stat_in(snapshot, inode)])
        return self._sound([stat_in(snapshot, child) for _, child in snapshot.children(inode)])

    def walk(self, path: bytes) -> Iterator[FileStat]:
        """See `Lookup`."""
        return walk_snapshot(self.snapshot, self._inode(path))

    def extent(self, path: bytes) -> FileExtent:
        """See `Lookup`."""
        return self._sound(self.snapshot.extent(self.file_inode(path)))

    def link_extent(self, path: bytes) -> FileExtent:
        """See `Lookup`."""
        inode = self._inode(path)
        _check_kind(path, self.snapshot.mode(inode), is_link=True)
        return self._sound(self.snapshot.extent(inode))

    def extents(self, inodes: Inodes) -> list[FileExtent]:
        """Return where the bytes of several files are."""
        return self._sound([self.snapshot.extent(int(inode)) for inode in inodes])

    def file_inode(self, path: bytes) -> int:
        """Return the number of a file; raise `PathNotFound`, `PathConflict` and `PathIsLink`."""
        inode = self._inode(path)
        _check_kind(path, self.snapshot.mode(inode), is_link=False)
        return inode

    def file_inodes(self, files: Sequence[DatasetPath] | Inodes) -> Inodes:
        """Return the inodes of files given by paths or inodes; `PathNotFound`, `PathConflict`."""
        if not len(files) or not isinstance(files[0], str | bytes):
            return files  # type: ignore[return-value]
        paths = files if NAMES_ARE_UTF8 else [encoded(as_path(file)) for file in files]
        try:
            found = self.snapshot.paths.files(paths)  # type: ignore[arg-type]
        except TypeError:
            for file in files:
                as_path(file)  # raises with the reason
            raise
        if None not in found and not self.snapshot.has_links:
            return found  # type: ignore[return-value]
        return [
            self.file_inode(encoded(as_path(file)))
            if inode is None or self.snapshot.is_link(inode)
            else inode
            for file, inode in zip(files, found, strict=True)
        ]

    def _sound(self, found: _Found) -> _Found:
        """Return what was read from the snapshot, unless it was damaged before."""
        self.snapshot.check_unchanged()
        return found

    def _inode(self, path: bytes) -> int:
        inode = self._sound(self.snapshot.resolve(path))
        if inode is None:
            raise PathNotFound(
                f"no such file or directory in dataset {self.snapshot.dataset.name}: "
                f"{decoded(path)}"
            )
        return inode

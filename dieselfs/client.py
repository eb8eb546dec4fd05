"""The client library: libDIESEL's calls (DIESEL Table 3) as a context manager.

    with Client.connect("images", store=store, index=index, snapshot_folder=folder) as client:
        client.put(b"...", "cat/1.jpg")
        client.flush()
        client.get("cat/1.jpg")

Reads go to the index, or to a snapshot once `load_meta` has opened one; file bytes come from the store through a bounded cache of
chunks when read by the plan of a shuffle, and straight from the store otherwise.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.chunk_writer import DEFAULT_OPEN_CHUNKS, DEFAULT_TARGET_BYTES
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs import snapshots
from dieselfs.chunk_cache import DEFAULT_BUDGET_BYTES, ChunkCache
from dieselfs.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset_writer import DatasetWriter
from dieselfs.errors import NotYetSupported, UsageError
from dieselfs.shuffle import shuffle_order
from metadata.errors import PathConflict, PathNotFound, SnapshotRefused
from metadata.kv.key_value_store import KeyValueStore
from metadata.listing import DirectoryListing
from metadata.namespace import PathEntry
from metadata.snapshot import Snapshot

_STREAM_BYTES = 4 << 20
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

DatasetPath = str | bytes
"""A path in the dataset; str as of `os.fsencode`, so that any file name can be written."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What is known of a path. Of a directory, only kind, mode and mtime say anything."""

    path: str
    kind: str
    """`file` or `directory`."""
    size: int
    mode: int
    """st_mode with type bits."""
    mtime_ns: int
    chunk: str | None
    offset: int
    hash: int
    """xxh3_64 of the content."""
    generation: int
    """The commit that gave the path this content; 0 when read from a snapshot."""


class Client:
    """One dataset, for one thread at a time. Reading survives a fork; writing must be opened anew in the child."""

    def __init__(self, dataset: Dataset, snapshot_folder: Path, **packing: int) -> None:
        self.dataset = dataset
        self._snapshot_folder = snapshot_folder
        self._packing = packing
        self._writer: DatasetWriter | None = None
        self._snapshot: Snapshot | None = None
        self._cache: ChunkCache | None = None

    @classmethod
    def connect(
        cls,
        dataset: str,
        *,
        store: ObjectStore,
        index: KeyValueStore,
        snapshot_folder: Path,
        create: bool = False,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        open_chunks: int = DEFAULT_OPEN_CHUNKS,
        seed: int = 0,
    ) -> Client:
        """DL_connect. Raises `DatasetNotFound` unless told to `create`; brings an index that is behind up to date."""
        opened = open_dataset(store, index, dataset, create=create)
        return cls(
            opened, snapshot_folder, target_bytes=target_bytes, open_chunks=open_chunks, seed=seed
        )

    def put(
        self,
        data: Buffer | BinaryIO | os.PathLike[str],
        path: DatasetPath,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
    ) -> None:
        """DL_put: pack one file, given as bytes, an open binary file or a local path (whose mode and mtime are kept).

        It is acknowledged when `flush` or `close` returns. A buffer must not be changed after it was put.
        """
        if not isinstance(data, bytes):
            if isinstance(data, os.PathLike):
                with open(data, "rb") as file:
                    status = os.fstat(file.fileno())
                    data = file.read()
                mode = status.st_mode & 0o7777 if mode is None else mode
                mtime_ns = status.st_mtime_ns if mtime_ns is None else mtime_ns
            else:
                data = _bytes_of(data)
        writer = self._writer or self._open_writer()
        writer.put(_encoded(path), data, 0o644 if mode is None else mode, mtime_ns)

    def flush(self) -> int:
        """DL_flush: everything put or deleted is durable, committed and indexed; the generation reached."""
        if self._writer is None:
            return self.dataset.namespace.state().generation
        return self._writer.flush()

    def get(self, path: DatasetPath) -> bytes:
        """DL_get: the whole file, verified; `PathNotFound`, `PathConflict` for a directory."""
        extent = self._extent(_encoded(path))
        if not extent.length:
            return b""
        return bytes(self._source().read(extent, 0, extent.length))

    def read_to(self, path: DatasetPath, target: BinaryIO) -> int:
        """Copy a file of any size to `target` in verified pieces; the number of bytes."""
        extent = self._extent(_encoded(path))
        for start in range(0, extent.length, _STREAM_BYTES):
            target.write(
                self._source().read(extent, start, min(_STREAM_BYTES, extent.length - start))
            )
        return extent.length

    def stat(self, path: DatasetPath) -> FileStat:
        """DL_stat; `PathNotFound`."""
        encoded = _encoded(path)
        if self._snapshot is not None:
            return _stat_in(self._snapshot, self._inode(encoded))
        entry = self.dataset.namespace.stat(encoded)
        return _stat_of(entry.path, entry.row)

    def ls(self, path: DatasetPath = b"") -> list[FileStat]:
        """DL_ls: the children of a directory, directories first, each sorted by name; of a file, itself."""
        encoded = _encoded(path)
        if self._snapshot is not None:
            inode = self._inode(encoded)
            if not self._snapshot.is_directory(inode):
                return [_stat_in(self._snapshot, inode)]
            return [_stat_in(self._snapshot, child) for _, child in self._snapshot.children(inode)]
        found = self.stat(encoded)
        if found.kind == "file":
            return [found]
        return list(_children(self.dataset.namespace.list(encoded)))

    def walk(self, path: DatasetPath = b"") -> Iterator[FileStat]:
        """Everything below a directory, each directory before its content; of a file, itself. Streams."""
        encoded = _encoded(path)
        if self.stat(encoded).kind == "file":
            yield self.stat(encoded)
        elif self._snapshot is not None:
            yield from _walk_snapshot(self._snapshot, self._inode(encoded))
        else:
            for listing in self.dataset.namespace.walk(encoded):
                yield from _children(listing)

    def delete(self, path: DatasetPath) -> None:
        """DL_delete: one file, or an empty directory. Acknowledged by `flush`, as a put is."""
        encoded = _encoded(path)
        writer = self._open_writer()
        writer.flush()
        applied = self.dataset.namespace.state().generation
        entry = self.dataset.namespace.stat(encoded)
        if not entry.is_directory:
            writer.delete(entry)
            return
        listing = self.dataset.namespace.list(encoded)
        if not encoded or listing.file_names or listing.directory_names:
            raise PathConflict(
                f"directory {_decoded(encoded) or '/'} is not empty: delete it with all below it"
            )
        writer.delete(entry, applied)

    def delete_tree(self, path: DatasetPath) -> int:
        """Delete a file, or a directory with everything below it; how many files. A file put meanwhile survives."""
        encoded = _encoded(path)
        writer = self._open_writer()
        writer.flush()
        applied = self.dataset.namespace.state().generation
        top = self.dataset.namespace.stat(encoded)
        if not top.is_directory:
            writer.delete(top)
            return 1
        count = 0
        for listing in self.dataset.namespace.walk(encoded):
            for name, row in zip(listing.file_names, listing.files, strict=True):
                writer.delete(PathEntry(_join(listing.path, name), row))
            for name, row in zip(listing.directory_names, listing.directories, strict=True):
                writer.delete(PathEntry(_join(listing.path, name), row), applied)
            count += len(listing.file_names)
        if encoded:
            writer.delete(top, applied)
        return count

    def save_meta(self, folder: Path | None = None) -> Path:
        """DL_save_meta: write a snapshot of the dataset's present state; its path."""
        self.flush()
        return snapshots.build(self.dataset, folder or self._snapshot_folder)

    def load_meta(self, path: Path, *, check_fresh: bool = True) -> None:
        """DL_load_meta: answer metadata from a snapshot file from now on. What was put before is flushed; nothing can be put after.

        `SnapshotRefused` if it is of another dataset, `SnapshotStale` if the dataset has moved on."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        snapshot = Snapshot.open(path)
        try:
            if snapshot.dataset != self.dataset.ref:
                raise SnapshotRefused(
                    f"{path} is a snapshot of dataset {snapshot.dataset.name}, not of {self.dataset.ref.name}"
                )
            if check_fresh:
                snapshots.check_fresh(snapshot, self.dataset.index)
        except BaseException:
            snapshot.close()
            raise
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = snapshot

    def shuffle(
        self,
        *,
        seed: int = 0,
        epoch: int = 0,
        group_size: int = 100,
        rank: int = 0,
        world_size: int = 1,
        memory_bytes: int = DEFAULT_BUDGET_BYTES,
    ) -> list[str]:
        """DL_shuffle: this rank's paths in chunk-wise shuffled order (DIESEL §4.3); reads are served from whole chunks from now on.

        Needs a snapshot: one is made if none was loaded."""
        if self._snapshot is None:
            self.load_meta(self.save_meta(), check_fresh=False)  # another writer may be at work
        assert self._snapshot is not None
        if self._cache is None:
            self._cache = ChunkCache(self.dataset.reader, memory_bytes)
        order = shuffle_order(
            self._snapshot.chunk_first_inode, seed, epoch, group_size, rank, world_size
        )
        text = self._snapshot.paths_text(order.inodes, b"\0")
        return [os.fsdecode(path) for path in text.split(b"\0")[:-1]]

    def purge(self) -> None:
        """DL_purge: merge chunks with holes. Not built yet."""
        raise NotYetSupported(
            "purge does not exist yet",
            "deleted files are hidden, and their bytes stay in the store",
        )

    def delete_dataset(self) -> None:
        """DL_delete_dataset: remove the dataset with everything in it, for good."""
        self._stop_writer()
        remove_dataset(self.dataset.store, self.dataset.index, self.dataset.ref.name)

    def close(self) -> None:
        """DL_close: flush, and let go of the snapshot. Store and index belong to the caller."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._writer = None
            if self._snapshot is not None:
                self._snapshot.close()
                self._snapshot = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stop_writer()
        self.close()

    def _open_writer(self) -> DatasetWriter:
        if self._snapshot is not None:
            raise UsageError("this client reads from a snapshot: write with another one")
        if self._writer is None:
            self._writer = DatasetWriter(self.dataset, **self._packing)
        return self._writer

    def _stop_writer(self) -> None:
        """Stop without flushing."""
        if self._writer is not None:
            self._writer.__exit__(RuntimeError, RuntimeError(), None)
            self._writer = None

    def _source(self) -> ChunkSource:
        return self._cache or self.dataset.reader

    def _inode(self, path: bytes) -> int:
        assert self._snapshot is not None
        inode = self._snapshot.resolve(path)
        if inode is None:
            raise PathNotFound(
                f"no such file or directory in dataset {self.dataset.ref.name}: {_decoded(path)}"
            )
        return inode

    def _extent(self, path: bytes) -> FileExtent:
        if self._snapshot is not None:
            inode = self._inode(path)
            if self._snapshot.is_directory(inode):
                raise PathConflict(f"is a directory: {_decoded(path)}")
            return self._snapshot.extent(inode)
        entry = self.dataset.namespace.stat(path)
        if entry.is_directory:
            raise PathConflict(f"is a directory: {_decoded(path) or '/'}")
        return self._extent_of(entry)

    def _extent_of(self, entry: PathEntry) -> FileExtent:
        row = entry.row
        record = self.dataset.namespace.chunk(bytes(row["chunk"]))
        chunk = ChunkRef(ChunkId(bytes(row["chunk"])), record.head_bytes, record.payload_bytes)
        return FileExtent(chunk, int(row["offset"]), int(row["length"]), int(row["hash"]))


def _encoded(path: DatasetPath) -> bytes:
    encoded = (
        path if isinstance(path, bytes) else path.encode(_ENCODING, _ENCODING_ERRORS)
    )  # os.fsencode, quicker
    return encoded.strip(b"/")


def _bytes_of(data: Buffer | BinaryIO) -> Buffer:
    """What `put` was given, as one flat run of bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        data = data.read()
        if not isinstance(data, bytes):
            raise UsageError("a file that is put is opened in binary mode")
    elif isinstance(data, memoryview) and (
        data.itemsize != 1 or data.ndim != 1 or not data.contiguous
    ):
        return data.tobytes()
    return data


def _decoded(path: bytes) -> str:
    return os.fsdecode(path)


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def _stat_of(path: bytes, row: np.void) -> FileStat:
    directory = stat.S_ISDIR(int(row["mode"]))
    return FileStat(
        path=_decoded(path),
        kind="directory" if directory else "file",
        size=int(row["length"]),
        mode=int(row["mode"]),
        mtime_ns=int(row["mtime_ns"]),
        chunk=None if directory else str(ChunkId(bytes(row["chunk"]))),
        offset=int(row["offset"]),
        hash=int(row["hash"]),
        generation=int(row["version"]) >> 1,
    )


def _stat_in(snapshot: Snapshot, inode: int) -> FileStat:
    directory = snapshot.is_directory(inode)
    extent = None if directory else snapshot.extent(inode)
    return FileStat(
        path=_decoded(snapshot.path_of(inode)),
        kind="directory" if directory else "file",
        size=0 if extent is None else extent.length,
        mode=snapshot.mode(inode),
        mtime_ns=snapshot.mtime_ns(inode),
        chunk=None if extent is None else str(extent.chunk.id),
        offset=0 if extent is None else extent.offset,
        hash=0 if extent is None else extent.hash,
        generation=0,
    )


def _children(listing: DirectoryListing) -> Iterator[FileStat]:
    for name, row in zip(listing.directory_names, listing.directories, strict=True):
        yield _stat_of(_join(listing.path, name), row)
    for name, row in zip(listing.file_names, listing.files, strict=True):
        yield _stat_of(_join(listing.path, name), row)


def _walk_snapshot(snapshot: Snapshot, top: int) -> Iterator[FileStat]:
    pending = [top]
    while pending:
        directories = []
        for _, child in snapshot.children(pending.pop()):
            yield _stat_in(snapshot, child)
            if snapshot.is_directory(child):
                directories.append(child)
        pending.extend(reversed(directories))

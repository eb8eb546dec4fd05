"""The attributes of a path in a dataset, from the index or a snapshot."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import ChunkId
from metadata.listing import DirectoryListing
from metadata.snapshot import Snapshot

_KINDS: Final = {stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


@dataclass(frozen=True, slots=True)
class FileStat:
    """The attributes of a path. For a directory only kind, mode and mtime have a meaning."""

    path: str
    kind: str
    """`file`, `directory` or `link`; the content of a symbolic link is its target."""
    size: int
    mode: int
    """The st_mode with type bits."""
    mtime_ns: int
    chunk: str | None
    offset: int
    hash: int
    """The xxh3_64 of the content."""
    generation: int
    """The commit that gave the path this content; 0 when read from a snapshot."""


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "file")


def joined(directory: bytes, name: bytes) -> bytes:
    """Return the path of `name` below a directory; the root's path is empty."""
    return directory + b"/" + name if directory else name


def stat_of_row(path: bytes, row: np.void) -> FileStat:
    """Return the attributes of an entry of the index."""
    directory = stat.S_ISDIR(int(row["mode"]))
    return FileStat(
        path=os.fsdecode(path),
        kind=_kind(int(row["mode"])),
        size=int(row["length"]),
        mode=int(row["mode"]),
        mtime_ns=int(row["mtime_ns"]),
        chunk=None if directory else str(ChunkId(bytes(row["chunk"]))),
        offset=int(row["offset"]),
        hash=int(row["hash"]),
        generation=int(row["version"]) >> 1,
    )


def stat_in(snapshot: Snapshot, inode: int) -> FileStat:
    """Return the attributes of an inode; the caller calls `Snapshot.check_unchanged`."""
    directory = snapshot.is_directory(inode)
    extent = None if directory else snapshot.extent(inode)
    return FileStat(
        path=os.fsdecode(snapshot.path_of(inode)),
        kind="directory" if directory else _kind(snapshot.mode(inode)),
        size=0 if extent is None else extent.length,
        mode=snapshot.mode(inode),
        mtime_ns=snapshot.mtime_ns(inode),
        chunk=None if extent is None else str(extent.chunk.id),
        offset=0 if extent is None else extent.offset,
        hash=0 if extent is None else extent.hash,
        generation=0,
    )


def stats_of_listing(listing: DirectoryListing) -> Iterator[FileStat]:
    """Yield a directory's children, sub-directories first. About 1 µs each."""
    yield from _stats(listing.path, listing.directory_names, listing.directories)
    yield from _stats(listing.path, listing.file_names, listing.files)


def _stats(
    directory: bytes, names: Sequence[bytes], rows: npt.NDArray[np.void]
) -> Iterator[FileStat]:
    chunks: dict[bytes, str] = {}
    above = os.fsdecode(directory) + "/" if directory else ""
    columns = ("length", "mode", "mtime_ns", "chunk", "offset", "hash", "version")
    values = zip(names, *(rows[column].tolist() for column in columns), strict=True)
    for name, length, mode, mtime_ns, chunk, offset, hash_, version in values:
        is_directory = stat.S_ISDIR(mode)
        if not is_directory and chunk not in chunks:
            chunks[chunk] = str(ChunkId(chunk))
        yield FileStat(
            above + os.fsdecode(name),
            _kind(mode),
            length,
            mode,
            mtime_ns,
            None if is_directory else chunks[chunk],
            offset,
            hash_,
            version >> 1,
        )


def walk_snapshot(snapshot: Snapshot, top: int) -> Iterator[FileStat]:
    """Yield everything below a directory, each directory before its content."""
    pending = [top]
    while pending:
        directories = []
        for _, child in snapshot.children(pending.pop()):
            found = stat_in(snapshot, child)
            snapshot.check_unchanged()
            yield found
            if snapshot.is_directory(child):
                directories.append(child)
        snapshot.check_unchanged()
        pending.extend(reversed(directories))

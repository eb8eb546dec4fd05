"""The check of all that a snapshot promises, for a file from elsewhere, before it is mounted.

The whole file's hash finds damage. The checks of the content find a file that was built wrong or
with intent, which a hash cannot. After them every name is one that the kernel can be shown, a
listing is complete and in order, and every file lies inside of its chunk.
"""

from __future__ import annotations

import operator
import os
import stat
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import MAX_TARGET_BYTES
from chunkstore.errors import InvalidPath
from chunkstore.object_keys import check_dataset_name
from chunkstore.paths import MAX_PATH_BYTES, check_names
from chunkstore.stores.object_store import Buffer
from metadata import path_index, snapshot_bulk
from metadata.errors import SnapshotRefused
from metadata.snapshot_format import (
    DIRECTORY_BASE,
    MAX_HEADER_BYTES,
    Columns,
    SnapshotHeader,
    blank_hashes,
    decode_header,
    encode_header,
    header_bytes,
)

_READ_BYTES = 1 << 20
_FILES_A_BLOCK = 1 << 16


def check_file_hash(path: str | os.PathLike[str]) -> None:
    """Read the file once, through no map, and compare its hash with the header's.

    Raises `SnapshotRefused` and `OSError`.
    """
    with open(path, "rb") as file:
        start = file.read(MAX_HEADER_BYTES)
        header = decode_header(start, os.fstat(file.fileno()).st_size)
        length = header_bytes(header.dataset.name)
        digest = xxhash.xxh3_128(blank_hashes(start[:length]))
        digest.update(start[length:])
        while block := file.read(_READ_BYTES):
            digest.update(block)
    if digest.digest() != header.file_hash:
        raise SnapshotRefused(
            "the snapshot is damaged: its content does not have the hash that its header names"
        )


def has_file_hash(header: SnapshotHeader, content: Buffer) -> bool:
    """Return whether a whole file still has the hash of its header; about 10 GB/s."""
    view = memoryview(content)
    length = header_bytes(header.dataset.name)
    digest = xxhash.xxh3_128(blank_hashes(bytes(view[:length])))
    for start in range(length, len(view), _READ_BYTES):
        digest.update(view[start : start + _READ_BYTES])
    return digest.digest() == header.file_hash and encode_header(header) == view[:length]


def check_content(header: SnapshotHeader, columns: Columns) -> None:
    """Raise `SnapshotRefused` unless every promise of docs/snapshot-format.md holds."""
    try:
        check_dataset_name(header.dataset.name)
        _check_chunks(header, columns)
        _check_directories(header, columns)
        _check_files(header, columns)
        _check_indexes(header, columns)
    except (IndexError, ValueError, InvalidPath) as error:
        raise SnapshotRefused(f"the snapshot is damaged: {error}") from error


def _require(condition: bool | np.bool_, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _tiles(
    first: npt.NDArray[np.unsignedinteger],
    count: npt.NDArray[np.unsignedinteger],
    start: int,
    end: int,
) -> npt.NDArray[np.intp]:
    """Return the order in which the non-empty ranges [first, first + count) fill [start, end).

    Raises unless they fill it without gap or overlap.
    """
    used = np.flatnonzero(count)
    used = used[np.argsort(first[used], kind="stable")]
    ends = start + np.cumsum(count[used].astype(np.int64))
    _require((ends[-1] if len(ends) else start) == end, "the ranges of children do not add up")
    starts = np.concatenate([[start], ends[:-1]])[: len(used)]
    _require(np.array_equal(first[used], starts), "the ranges of children overlap or leave a gap")
    return used


def _check_chunks(header: SnapshotHeader, columns: Columns) -> None:
    first = columns.chunk_first_inode.astype(np.int64)
    sizes = np.diff(first)
    _require(first[0] == 0 and first[-1] == header.files, "chunks do not cover the files")
    _require((sizes > 0).all(), "a chunk has no files")
    _require(
        np.array_equal(columns.chunk, np.repeat(np.arange(header.chunks), sizes)),
        "files and chunks do not agree",
    )
    ids = columns.chunk_id.tolist()
    _require(all(map(operator.lt, ids, ids[1:])), "chunk ids are out of order")
    payload = np.repeat(columns.chunk_payload_bytes, sizes)
    inside = (columns.length <= payload) & (columns.offset <= payload - columns.length)
    _require(inside.all(), "a file reaches beyond its chunk")
    _require(
        int(columns.length.sum(dtype=np.uint64)) == header.total_bytes,
        "the files' lengths do not add up to the total",
    )


def _check_directories(header: SnapshotHeader, columns: Columns) -> None:
    count = header.directories
    parent = columns.directory_parent.astype(np.int64)
    _require(parent[0] == 0, "the root has a parent")
    _require((parent[1:] < np.arange(1, count)).all(), "a directory comes before its parent")
    used = _tiles(columns.directory_first_directory, columns.directory_directory_count, 1, count)
    sizes = columns.directory_directory_count[used]
    _require(np.array_equal(parent[1:], np.repeat(used, sizes)), "directories and parents disagree")
    _require(
        ((columns.directory_mode & 0o170000) == stat.S_IFDIR).all(),
        "the mode of a directory is not a directory's",
    )
    path_at = columns.directory_path_at.tolist()
    heap = columns.directory_paths.tobytes()
    _require(path_at[:2] == [0, 0] and path_at[-1] == len(heap), "paths do not fill their heap")
    paths = [heap[start:end] for start, end in pairwise(path_at)]
    parents = parent.tolist()
    names = [b""]
    for number in range(1, count):
        path, above = paths[number], paths[parents[number]]
        _require(
            path.startswith(above) and path.endswith(b"/"),
            "a path does not begin with its parent's",
        )
        names.append(path[len(above) : -1])
        # Names are compared, not paths: '/' at the end would come between 'a' and 'a.b'.
        sibling = number > 1 and parents[number] == parents[number - 1]
        _require(not sibling or names[-2] < names[-1], "directories are out of order")
    check_names(names[1:])
    _require(max(map(len, paths)) <= MAX_PATH_BYTES + 1, "a path is too long")


def _check_files(header: SnapshotHeader, columns: Columns) -> None:
    by_name = columns.by_name
    ranked = np.zeros(header.files, bool)
    ranked[by_name] = True
    _require(ranked.all(), "a file is in no directory")
    used = _tiles(columns.directory_first_file, columns.directory_file_count, 0, header.files)
    parent = columns.parent[by_name]
    sizes = columns.directory_file_count[used]
    _require(np.array_equal(parent, np.repeat(used, sizes)), "files and directories do not agree")
    _check_types(header, columns)
    name_bytes = columns.name_bytes[by_name].astype(np.int64)
    ends = np.cumsum(name_bytes + 1)
    _require(
        np.array_equal(columns.name_at[by_name], ends - 1 - name_bytes)
        and len(columns.names) == (ends[-1] if len(ends) else 0),
        "names do not fill their heap",
    )
    _require(
        not columns.names[ends - 1].any()
        and np.count_nonzero(columns.names == 0) == header.files
        and not (columns.names == ord("/")).any(),
        "a name contains a NUL or a '/'",
    )
    directory_bytes = np.diff(columns.directory_path_at).astype(np.int64)[parent]
    longest = int((directory_bytes + name_bytes).max(initial=0))
    _require(longest <= MAX_PATH_BYTES, "a path is too long")
    for start, end in _blocks(header.files):
        # The name before the block is included, since its order with the block's first name counts
        # too.
        first = max(0, start - 1)
        low = int(ends[first - 1]) if first else 0
        names = columns.names[low : int(ends[end - 1]) - 1].tobytes().split(b"\0")
        check_names(names)
        ascends = np.fromiter(map(operator.lt, names, names[1:]), bool, len(names) - 1)
        same = parent[first : end - 1] == parent[first + 1 : end]
        _require((ascends | ~same).all(), "names are out of order")


def _check_types(header: SnapshotHeader, columns: Columns) -> None:
    types = columns.mode & 0o170000
    fits = types == stat.S_IFREG
    if header.has_links:
        links = types == stat.S_IFLNK
        fits |= links
        bytes_of_links = columns.length[links]
        inside = (bytes_of_links >= 1) & (bytes_of_links <= MAX_TARGET_BYTES)
        _require(inside.all(), "the length of a link's target is out of bounds")
    _require(fits.all(), "the mode of a file is not a file's")


def _check_indexes(header: SnapshotHeader, columns: Columns) -> None:
    """Build the tables again and compare them, since they are functions of the paths."""
    hashes = np.empty(header.files, np.uint64)
    for start, end in _blocks(header.files):
        text = snapshot_bulk.paths_text(columns, np.arange(start, end), b"\0")
        paths = text.split(b"\0")[:-1]
        hashes[start:end] = np.fromiter(map(xxhash.xxh3_64_intdigest, paths), np.uint64, len(paths))
    table, reach = path_index.build(hashes, np.arange(header.files))
    _require(
        reach == header.file_index_reach and np.array_equal(table, columns.file_index),
        "the index of files does not match their paths",
    )
    heap, path_at = columns.directory_paths.tobytes(), columns.directory_path_at.tolist()
    ends = pairwise(path_at)
    paths = [heap[start : max(start, end - 1)] for start, end in ends]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, paths), np.uint64, len(paths))
    numbers = np.arange(header.directories)
    table, reach = path_index.build(hashes, numbers)
    _require(
        reach == header.directory_index_reach and np.array_equal(table, columns.directory_index),
        "the index of directories does not match their paths",
    )
    found = snapshot_bulk.resolve_many(header, columns, paths)
    _require(np.array_equal(found, numbers + DIRECTORY_BASE), "a path is a file and a directory")


def _blocks(files: int) -> Iterator[tuple[int, int]]:
    for start in range(0, files, _FILES_A_BLOCK):
        yield start, min(files, start + _FILES_A_BLOCK)

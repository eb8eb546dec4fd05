"""Snapshot format v1 and v2: a header and flat columns, to bytes and back.

The specification, byte by byte, is docs/snapshot-format.md. A snapshot is one immutable file that
is only ever read through a memory map. Everything in it is an array of fixed-width numbers or a
heap of names. So opening costs nothing, all processes of a node share one copy, and damage can only
yield wrong numbers, which are checked before they are used. The reasons against LMDB are in
docs/decisions/0001.

Inode i < F is the file of rank i by (chunk id, position in the chunk), so a chunk's files are one
range of inodes. Inode DIRECTORY_BASE + d is directory d; directory 0 is the root and parents come
before their children.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.stores.object_store import Buffer
from metadata.errors import SnapshotRefused

MAGIC: Final = b"DIESELSN"
FORMAT_VERSION: Final = 1
LINK_FORMAT_VERSION: Final = 2
"""The version of a snapshot with a symbolic link; the layout is that of version 1."""
DIRECTORY_BASE: Final = 1 << 39
"""The first inode of a directory.

With the front `fuse`, a kernel inode is 2^40 + snapshot inode (docs/snapshot-format.md, "Inodes").
"""
MAX_FILES: Final = (1 << 31) - 1
"""The most files: inode + 1 and the slots of the path index, two a file, are 32-bit numbers."""
ALIGNMENT: Final = 64
TAIL_BYTES: Final = 64
"""The zeros at the end of the file.

Reading a name in steps of up to 64 bytes never leaves the map.
"""
MAX_HEADER_BYTES: Final = 4096

if (
    sys.byteorder != "little"
):  # columns are used as they lie, by memoryview as well, which knows only native order
    raise ImportError("snapshots are little-endian and are read without conversion")


@dataclass(frozen=True, slots=True)
class Section:
    """One array of the file.

    Its width is its length divided by its rows: the narrowest of `types` that holds all values.
    """

    name: str
    types: tuple[str, ...]
    rows: str = ""
    """The count of the header that gives its rows; '' if its length is its own (heaps, indexes)."""
    extra_rows: int = 0


SECTIONS: Final = (
    # Files, by inode.
    Section("offset", ("u4", "u8"), "files"),
    Section("length", ("u8",), "files"),
    Section("hash", ("u8",), "files"),
    Section("mtime_ns", ("i8",), "files"),
    Section("mode", ("u2",), "files"),
    Section("chunk", ("u4",), "files"),
    Section("parent", ("u4",), "files"),
    Section("name_at", ("u4", "u8"), "files"),
    Section("name_bytes", ("u1",), "files"),
    # Files by rank: directory by directory, sorted by name within one.
    Section("by_name", ("u4",), "files"),
    Section("names", ("u1",)),
    # Chunks, by number.
    Section("chunk_id", ("V16",), "chunks"),
    Section("chunk_head_bytes", ("u4",), "chunks"),
    Section("chunk_payload_bytes", ("u8",), "chunks"),
    Section("chunk_first_inode", ("u4",), "chunks", 1),
    # Directories, by number.
    Section("directory_parent", ("u4",), "directories"),
    Section("directory_path_at", ("u8",), "directories", 1),
    Section("directory_mode", ("u2",), "directories"),
    Section("directory_mtime_ns", ("i8",), "directories"),
    Section("directory_first_file", ("u4",), "directories"),
    Section("directory_file_count", ("u4",), "directories"),
    Section("directory_first_directory", ("u4",), "directories"),
    Section("directory_directory_count", ("u4",), "directories"),
    Section("directory_paths", ("u1",)),
    # Hash tables from path to inode + 1 and to directory number + 1.
    Section("file_index", ("u4",)),
    Section("directory_index", ("u4",)),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The sections as arrays, views of the map.

    Their shape, order and meaning are in docs/snapshot-format.md.
    """

    file: npt.NDArray[np.uint8]
    """The whole file as bytes: the name of inode i starts at `names_start + name_at[i]`."""
    names_start: int
    directory_paths_start: int
    offset: npt.NDArray[np.unsignedinteger]
    length: npt.NDArray[np.uint64]
    hash: npt.NDArray[np.uint64]
    mtime_ns: npt.NDArray[np.int64]
    mode: npt.NDArray[np.uint16]
    chunk: npt.NDArray[np.uint32]
    """The number of the chunk that a file lies in; ascending."""
    parent: npt.NDArray[np.uint32]
    """The number of the directory that a file lies in."""
    name_at: npt.NDArray[np.unsignedinteger]
    name_bytes: npt.NDArray[np.uint8]
    by_name: npt.NDArray[np.uint32]
    names: npt.NDArray[np.uint8]
    """The names by rank, each ended by NUL."""
    chunk_id: npt.NDArray[np.void]
    chunk_head_bytes: npt.NDArray[np.uint32]
    chunk_payload_bytes: npt.NDArray[np.uint64]
    chunk_first_inode: npt.NDArray[np.uint32]
    """The first inodes of the chunks, one more than there are: chunk c holds [c] to [c + 1]."""
    directory_parent: npt.NDArray[np.uint32]
    directory_path_at: npt.NDArray[np.uint64]
    """The positions of paths, one more than there are.

    Path d lies in `directory_paths` from [d] to [d + 1].
    """
    directory_mode: npt.NDArray[np.uint16]
    directory_mtime_ns: npt.NDArray[np.int64]
    directory_first_file: npt.NDArray[np.uint32]
    """The rank of the directory's first file."""
    directory_file_count: npt.NDArray[np.uint32]
    directory_first_directory: npt.NDArray[np.uint32]
    directory_directory_count: npt.NDArray[np.uint32]
    directory_paths: npt.NDArray[np.uint8]
    """Full paths, each ended by `/`; the root's is empty.

    A file's path is its directory's path and its name, joined as they are.
    """
    file_index: npt.NDArray[np.uint32]
    directory_index: npt.NDArray[np.uint32]


_FIXED = struct.Struct("<8sHHI16sQqQQQQQ16sIIHHI")
_FILE_HASH_AT: Final = struct.calcsize("<8sHHI16sQqQQQQQ")
_FILE_HASH_BYTES: Final = 16
_HEADER_HASH_BYTES: Final = 8
_EXTENT = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The first bytes of the file, which describe the rest."""

    dataset: DatasetRef
    generation: int
    updated_ns: int
    """The time of the generation's commit, by its writer's clock."""
    files: int
    total_bytes: int
    """The sum of the files' lengths."""
    directories: int
    """The number of directories, including the root."""
    chunks: int
    """The number of chunks that hold a live file."""
    file_bytes: int
    """The length of the snapshot file."""
    file_hash: bytes
    """The xxh3_128 of the whole file, with zeros for this hash and for the header's own."""
    file_index_reach: int
    """The most slots, from the one that it hashes to, within which a path is found."""
    directory_index_reach: int
    sections: Mapping[str, tuple[int, int]]
    """The map name -> offset and length in bytes, for each of `SECTIONS`."""
    has_links: bool = False
    """True if some of the files are symbolic links: the format's version is 2."""

    @property
    def id(self) -> str:
        """The id `<generation>-<hash of the whole file>`."""
        return f"{self.generation}-{self.file_hash.hex()}"


def header_bytes(dataset_name: str) -> int:
    """Return the length of an encoded header, which is known before the hash is."""
    return (
        _FIXED.size + len(SECTIONS) * _EXTENT.size + len(dataset_name.encode()) + _HEADER_HASH_BYTES
    )


def encode_header(header: SnapshotHeader) -> bytes:
    """Return the header as bytes, with its own checksum at the end."""
    name = header.dataset.name.encode()
    fixed = _FIXED.pack(
        MAGIC,
        LINK_FORMAT_VERSION if header.has_links else FORMAT_VERSION,
        0,
        header_bytes(header.dataset.name),
        header.dataset.id,
        header.generation,
        header.updated_ns,
        header.files,
        header.total_bytes,
        header.directories,
        header.chunks,
        header.file_bytes,
        header.file_hash,
        header.file_index_reach,
        header.directory_index_reach,
        len(name),
        len(SECTIONS),
        0,
    )
    table = b"".join(_EXTENT.pack(*header.sections[section.name]) for section in SECTIONS)
    body = fixed + table + name
    return body + xxhash.xxh3_64_digest(body)


def blank_hashes(header: bytes) -> bytes:
    """Return `header` with zeros for both hashes: the whole-file hash covers this instead."""
    before, after = (
        header[:_FILE_HASH_AT],
        header[_FILE_HASH_AT + _FILE_HASH_BYTES : -_HEADER_HASH_BYTES],
    )
    return before + bytes(_FILE_HASH_BYTES) + after + bytes(_HEADER_HASH_BYTES)


def _check_length(declared: int, file_bytes: int) -> None:
    if declared != file_bytes:
        raise SnapshotRefused(
            f"the snapshot has {file_bytes} bytes instead of {declared}: "
            "it is truncated or overwritten"
        )


def decode_header(data: Buffer, file_bytes: int) -> SnapshotHeader:
    """Decode and check the header at the start of `data`, for a file of `file_bytes`.

    Raises `SnapshotRefused` with the reason.
    """
    data = bytes(data)
    if len(data) < _FIXED.size:
        raise SnapshotRefused(f"the file is not a snapshot: it has only {len(data)} bytes")
    (
        magic, version, _, length, dataset_id, generation, updated_ns, files, total, directories,
        chunks, declared, file_hash, file_reach, directory_reach, name_bytes, section_count, _,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise SnapshotRefused(f"the file is not a snapshot: it starts with {magic!r}")
    if not FORMAT_VERSION <= version <= LINK_FORMAT_VERSION:
        raise SnapshotRefused(
            f"snapshot format {version}; this release reads {FORMAT_VERSION} and "
            f"{LINK_FORMAT_VERSION}"
        )
    if not _FIXED.size + _HEADER_HASH_BYTES <= length <= min(len(data), MAX_HEADER_BYTES):
        raise SnapshotRefused("the snapshot's header is damaged: its length is out of bounds")
    body = data[: length - _HEADER_HASH_BYTES]
    if xxhash.xxh3_64_digest(body) != data[len(body) : length]:
        raise SnapshotRefused("the snapshot's header is damaged: its checksum is wrong")
    if (
        section_count != len(SECTIONS)
        or length != _FIXED.size + section_count * _EXTENT.size + name_bytes + 8
    ):
        raise SnapshotRefused(
            "the snapshot's header is damaged: its table of sections has the wrong length"
        )
    _check_length(declared, file_bytes)
    table_end = _FIXED.size + section_count * _EXTENT.size
    extents = _EXTENT.iter_unpack(body[_FIXED.size : table_end])
    header = SnapshotHeader(
        DatasetRef(body[table_end:].decode(errors="replace"), dataset_id),
        generation,
        updated_ns,
        files,
        total,
        directories,
        chunks,
        declared,
        file_hash,
        file_reach,
        directory_reach,
        {
            section.name: (start, size)
            for section, (start, size) in zip(SECTIONS, extents, strict=True)
        },
        version == LINK_FORMAT_VERSION,
    )
    _check_bounds(header)
    return header


def _check_bounds(header: SnapshotHeader) -> None:
    """Raise unless every section lies in the file, aligned, with as many rows as the counts say."""
    if (
        header.files > MAX_FILES
        or not 1 <= header.directories <= MAX_FILES
        or header.chunks > header.files
    ):
        raise SnapshotRefused("the snapshot's header is damaged: its counts are out of bounds")
    for section in SECTIONS:
        start, size = header.sections[section.name]
        if start % ALIGNMENT or start + size > header.file_bytes - TAIL_BYTES:
            raise SnapshotRefused(
                f"the snapshot is damaged: section {section.name} lies outside of the file"
            )
        section_type(header, section)


def section_type(header: SnapshotHeader, section: Section) -> np.dtype[np.generic]:
    """Return the width that a section was written with."""
    size = header.sections[section.name][1]
    candidates = [
        np.dtype(name) if name[0] == "V" else np.dtype("<" + name) for name in section.types
    ]
    if not section.rows:
        if size % candidates[0].itemsize == 0:
            return candidates[0]
    else:
        rows = getattr(header, section.rows) + section.extra_rows
        for candidate in candidates:
            if size == rows * candidate.itemsize:
                return candidate
    raise SnapshotRefused(f"the snapshot is damaged: section {section.name} has the wrong length")


def map_columns(header: SnapshotHeader, buffer: memoryview) -> Columns:
    """Return the sections of `buffer`, the whole file, without copying."""
    arrays = {}
    for section in SECTIONS:
        start, size = header.sections[section.name]
        kind = section_type(header, section)
        arrays[section.name] = np.frombuffer(buffer[start : start + size], kind)
    return Columns(
        file=np.frombuffer(buffer, np.uint8),
        names_start=header.sections["names"][0],
        directory_paths_start=header.sections["directory_paths"][0],
        **arrays,
    )

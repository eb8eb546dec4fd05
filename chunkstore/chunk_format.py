"""Chunk format v1 and v2: a pure conversion between bytes and columns (DIESEL Fig. 5).

docs/chunk-format.md is the specification, byte by byte. A chunk is preamble · header · payload. The
header comes first, so that one ranged read of an object's head recovers all metadata of its files.
Entries are columns, never one object per file.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt, InvalidPath
from chunkstore.object_keys import check_dataset_name
from chunkstore.paths import check_paths
from chunkstore.stores.object_store import Buffer

MAGIC: Final = b"DIESELCK"
FORMAT_VERSION: Final = 1
LINK_FORMAT_VERSION: Final = 2
"""The version of a chunk with a symbolic link.

The layout is that of version 1. Releases that know no links refuse such a chunk as a whole, and
read all others.
"""
BLOCK_BYTES: Final = 256 * 1024
"""The size of a hash block.

A larger file carries a hash for each block of this size, so that a range can be verified.
"""
MAX_HEADER_BYTES: Final = 64 << 20
"""The longest header that a reader accepts.

The limit bounds the memory that a hostile preamble can make a reader allocate; the block hashes of
a 2 TB file still fit.
"""
MAX_PAYLOAD_BYTES: Final = 1 << 48
"""The longest payload that a reader accepts, far above any real one.

With this limit, sums of offsets and lengths stay exact in 64 bits, signed ones too.
"""
MAX_TARGET_BYTES: Final = 4095
"""The longest target of a link: the kernel reads it into one page, with a NUL behind it."""
MAX_ENTRIES: Final = 1 << 16
"""The most entries of a chunk; the limit bounds a chunk of empty files."""

KIND_FILE: Final = 1
KIND_DIRECTORY: Final = 2
KIND_TOMBSTONE: Final = 3

_PREAMBLE = struct.Struct(
    "<8sHHI16sQQ8x"
)  # magic, version, reserved, header length, chunk id, payload length, header hash
PREAMBLE_BYTES: Final = _PREAMBLE.size + 8  # with the preamble's own hash: 64
_FIXED = struct.Struct(
    "<16sIIIHHQ"
)  # dataset id, entries, flags, block hashes, name length, reserved, path heap length
_VERSIONS_IN_FULL: Final = 1
_VERSIONS_BY_TABLE: Final = 2
_TYPE_BITS: Final = np.uint16(0o170000)
_MAX_LINK_BYTES: Final = np.uint64(MAX_TARGET_BYTES)

# Columns in file order, widest first, so that each is aligned in the header.
_COLUMNS: Final = (("offset", "<u8"), ("length", "<u8"), ("hash", "<u8"), ("mtime_ns", "<i8"))
_VERSION: Final = np.dtype(
    [("generation", "<u8"), ("chunk", "V16"), ("position", "<u4"), ("reserved", "<u4")]
)
_VERSION_ROW: Final = np.dtype([("generation", "<u8"), ("chunk", "V16")])
_TABLE = struct.Struct("<I4x")  # rows
_MAX_TABLE_ROWS: Final = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset's name and its random id; a removed and recreated name gets another id."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one chunk as columns of equal length n; entry i is at position i.

    `versions` is None if all entries are new in this chunk; the version of such an entry is (the
    commit's generation, this chunk, position). Otherwise `versions` holds the versions that purge
    carried along or that tombstones saw; generation 0 there means "new in this chunk".
    """

    paths: Sequence[bytes]
    kind: npt.NDArray[np.uint8]
    mode: npt.NDArray[np.uint16]
    """st_mode with its type bits; of a tombstone, only the type bits of the deleted entry.

    A symbolic link is an entry of the kind file whose content is its target; a tombstone deletes it
    as a file.
    """
    mtime_ns: npt.NDArray[np.int64]
    offset: npt.NDArray[np.uint64]
    """Bytes from the start of the payload."""
    length: npt.NDArray[np.uint64]
    hash: npt.NDArray[np.uint64]
    """The xxh3_64 of the content; 0 for directories and tombstones."""
    block_hash: npt.NDArray[np.uint64]
    """The xxh3_64 of each 256 KiB block of the files above 256 KiB, in entry order."""
    versions: npt.NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def block_range(self, position: int) -> slice:
        """Return the slice of `block_hash` that belongs to entry `position`."""
        counts = block_counts(self.length)
        start = int(counts[:position].sum())
        return slice(start, start + int(counts[position]))


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """The decoded preamble and header of a chunk."""

    chunk_id: ChunkId
    dataset: DatasetRef
    payload_bytes: int
    entries: Entries
    head_bytes: int = 0
    """The payload's start in the object, after preamble and header; set by encode and decode."""


def are_links(mode: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
    """Return which modes are those of symbolic links."""
    links: npt.NDArray[np.bool_] = (mode & _TYPE_BITS) == stat.S_IFLNK
    return links


def block_counts(length: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the number of block hashes of a file of each `length`: none up to 256 KiB."""
    block = np.uint64(BLOCK_BYTES)
    return np.where(length > block, length // block + (length % block > 0), np.uint64(0))


def make_versions(count: int) -> npt.NDArray[np.void]:
    """Return an empty column of versions."""
    return np.zeros(count, _VERSION)


def encode_head(
    chunk_id: ChunkId, dataset: DatasetRef, payload_bytes: int, entries: Entries
) -> bytes:
    """Return preamble and header of a chunk.

    The caller is responsible for valid columns; paths are checked where they enter.
    """
    count = len(entries)
    name = dataset.name.encode()
    heap = b"".join(entries.paths)
    path_end = np.cumsum(np.fromiter(map(len, entries.paths), np.uint32, count), dtype=np.uint32)
    flags, in_full, table, positions, rows = _encode_versions(entries.versions)
    header = b"".join(
        [
            _FIXED.pack(dataset.id, count, flags, len(entries.block_hash), len(name), 0, len(heap)),
            *(
                np.ascontiguousarray(getattr(entries, column), dtype).tobytes()
                for column, dtype in _COLUMNS
            ),
            in_full,
            table,
            np.ascontiguousarray(entries.block_hash, "<u8").tobytes(),
            path_end.astype("<u4").tobytes(),
            positions,
            np.ascontiguousarray(entries.mode, "<u2").tobytes(),
            rows,
            np.ascontiguousarray(entries.kind, "u1").tobytes(),
            name,
            heap,
        ]
    )
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(
            f"chunk header would have {len(header)} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    preamble = _PREAMBLE.pack(
        MAGIC,
        LINK_FORMAT_VERSION if are_links(entries.mode).any() else FORMAT_VERSION,
        0,
        len(header),
        chunk_id.value,
        payload_bytes,
        xxhash.xxh3_64_intdigest(header),
    )
    return preamble + xxhash.xxh3_64_digest(preamble) + header


def _encode_versions(
    versions: npt.NDArray[np.void] | None,
) -> tuple[int, bytes, bytes, bytes, bytes]:
    """Return flags, then either the column in full, or a table, positions and rows.

    Moved files come from few chunks, so with a table a version takes 6 bytes instead of 32.
    """
    if versions is None:
        return 0, b"", b"", b"", b""
    raw, new = versions.tobytes(), bytes(8)
    numbers: dict[bytes, int] = {}
    rows = []
    for at in range(0, len(raw), _VERSION.itemsize):
        key = raw[at : at + _VERSION_ROW.itemsize]
        rows.append(numbers.setdefault(key, len(numbers) + 1) if key[:8] != new else 0)
    if len(numbers) > _MAX_TABLE_ROWS:
        return _VERSIONS_IN_FULL, raw, b"", b"", b""
    return (
        _VERSIONS_BY_TABLE,
        b"",
        _TABLE.pack(len(numbers)) + b"".join(numbers),
        np.ascontiguousarray(versions["position"], "<u4").tobytes(),
        np.array(rows, "<u2").tobytes(),
    )


def _by_table(
    table: npt.NDArray[np.void], positions: npt.NDArray[np.uint32], rows: npt.NDArray[np.uint16]
) -> npt.NDArray[np.void]:
    """Return the full column of versions; raise `ValueError` for a row beyond the table."""
    if len(rows) and int(rows.max()) > len(table):
        raise ValueError("an entry names a version that is not in the table")
    named = np.concatenate([np.zeros(1, _VERSION_ROW), table])[rows]
    versions = make_versions(len(rows))
    versions["generation"], versions["chunk"] = named["generation"], named["chunk"]
    versions["position"] = positions
    return versions


@dataclass(frozen=True, slots=True)
class Preamble:
    """The first 64 bytes of a chunk, verified against their own hash."""

    chunk_id: ChunkId
    header_bytes: int
    payload_bytes: int
    header_hash: int
    version: int = FORMAT_VERSION

    @property
    def head_bytes(self) -> int:
        """Length of preamble and header: where the payload starts in the object."""
        return PREAMBLE_BYTES + self.header_bytes


class AnotherChunk(Corrupt):
    """The bytes are a sound chunk, or its start, but not the expected one."""


def decode_preamble(data: Buffer, expected: ChunkId | None = None) -> Preamble:
    """Return the preamble at the start of `data`.

    Raise `Corrupt` unless it is valid and of a version that this release reads, and `AnotherChunk`
    if it is not that of the `expected` chunk.
    """
    if len(data) < PREAMBLE_BYTES:
        raise Corrupt(f"a chunk has at least {PREAMBLE_BYTES} bytes, got {len(data)}")
    body = bytes(data[: _PREAMBLE.size])
    magic, version, _, header_bytes, chunk_id, payload_bytes, header_hash = _PREAMBLE.unpack(body)
    _check_magic(magic)
    _verify_preamble(body, data[_PREAMBLE.size : PREAMBLE_BYTES])
    _check_version(version)
    if header_bytes > MAX_HEADER_BYTES:
        raise Corrupt(
            f"chunk header of {header_bytes} bytes is over the limit of {MAX_HEADER_BYTES}"
        )
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise Corrupt(
            f"chunk payload of {payload_bytes} bytes is over the limit of {MAX_PAYLOAD_BYTES}"
        )
    _check_id(ChunkId(chunk_id), expected)
    return Preamble(ChunkId(chunk_id), header_bytes, payload_bytes, header_hash, version)


def _check_magic(magic: bytes) -> None:
    if magic != MAGIC:
        raise Corrupt(f"the object is not a chunk: it starts with {magic!r}")


def _verify_preamble(body: bytes, digest: Buffer) -> None:
    if xxhash.xxh3_64_digest(body) != bytes(digest):
        raise Corrupt("the checksum of the chunk's preamble is wrong")


def _check_version(version: int) -> None:
    if not FORMAT_VERSION <= version <= LINK_FORMAT_VERSION:
        raise Corrupt(
            f"chunk format {version}; this release reads {FORMAT_VERSION} and {LINK_FORMAT_VERSION}"
        )


def decode_head(data: Buffer, expected: ChunkId | None = None) -> ChunkHead:
    """Decode preamble and header from the first bytes of a chunk; the columns are views of `data`.

    Everything is verified before use: hashes, bounds, paths, and that the chunk is the `expected`
    one. Raises `Corrupt`.
    """
    preamble = decode_preamble(data, expected)
    header = memoryview(data)[PREAMBLE_BYTES : preamble.head_bytes]
    if len(header) != preamble.header_bytes:
        raise Corrupt(f"chunk {preamble.chunk_id} ends inside its header")
    _verify_header(header, preamble)
    try:
        dataset, entries = _decode_header(header)
        _check_entries(entries, preamble)
    except (ValueError, InvalidPath, struct.error) as error:
        raise Corrupt(f"header of chunk {preamble.chunk_id}: {error}") from error
    return ChunkHead(
        preamble.chunk_id, dataset, preamble.payload_bytes, entries, preamble.head_bytes
    )


def _check_id(found: ChunkId, expected: ChunkId | None) -> None:
    if expected is not None and found != expected:
        raise AnotherChunk(f"the object of chunk {expected} contains chunk {found}")


def _verify_header(header: memoryview, preamble: Preamble) -> None:
    if xxhash.xxh3_64_intdigest(header) != preamble.header_hash:
        raise Corrupt(f"the checksum of the header of chunk {preamble.chunk_id} is wrong")


def _decode_header(header: memoryview) -> tuple[DatasetRef, Entries]:
    dataset_id, count, flags, blocks, name_bytes, _, heap_bytes = _FIXED.unpack_from(header)
    if count > MAX_ENTRIES:
        raise ValueError(f"{count} entries are over the limit of {MAX_ENTRIES}")
    if flags not in (0, _VERSIONS_IN_FULL, _VERSIONS_BY_TABLE):
        raise ValueError(f"flags {flags:#x} are unknown")
    by_table = flags == _VERSIONS_BY_TABLE
    at = _FIXED.size

    def column(dtype: str | np.dtype[np.void], length: int) -> npt.NDArray[Any]:
        nonlocal at
        values = np.frombuffer(header, dtype, length, at)
        at += values.nbytes
        return values

    columns = {name: column(dtype, count) for name, dtype in _COLUMNS}
    versions = column(_VERSION, count) if flags == _VERSIONS_IN_FULL else None
    table = column(_VERSION_ROW, int(column("<u4", 2)[0])) if by_table else None
    block_hash = column("<u8", blocks)
    ends = column("<u4", count).tolist()
    positions = column("<u4", count if by_table else 0)
    mode = column("<u2", count)
    rows = column("<u2", count if by_table else 0)
    kind = column("u1", count)
    if table is not None:
        versions = _by_table(table, positions, rows)
    name = bytes(column("u1", name_bytes))
    heap = bytes(header[at:])
    if len(heap) != heap_bytes or (ends[-1] if ends else 0) != heap_bytes:
        raise ValueError("the length of the paths is wrong")
    if ends != sorted(ends):  # before paths are cut: they could overlap and fill the memory
        raise ValueError("the ends of the paths are out of order")
    paths = [heap[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=False)]
    entries = Entries(
        paths=paths, kind=kind, mode=mode, block_hash=block_hash, versions=versions, **columns
    )
    dataset = DatasetRef(name.decode(), dataset_id)
    check_dataset_name(dataset.name)
    return dataset, entries


def _check_entries(entries: Entries, preamble: Preamble) -> None:
    payload_bytes = preamble.payload_bytes
    is_file = entries.kind == KIND_FILE
    if not np.isin(entries.kind, (KIND_FILE, KIND_DIRECTORY, KIND_TOMBSTONE)).all():
        raise ValueError("an entry is of an unknown kind")
    if any(column[~is_file].any() for column in (entries.length, entries.offset, entries.hash)):
        raise ValueError("an entry that is not a file has content")
    file_type = entries.mode & _TYPE_BITS
    fits = (file_type == stat.S_IFREG) & (entries.kind != KIND_DIRECTORY)
    fits |= (file_type == stat.S_IFDIR) & ~is_file
    if preamble.version >= LINK_FORMAT_VERSION:
        is_link = (file_type == stat.S_IFLNK) & is_file
        fits |= is_link
        # A target of no bytes, like one that is too long, wraps round to a large number.
        if (entries.length[is_link] - np.uint64(1) >= _MAX_LINK_BYTES).any():
            raise ValueError(f"the target of a link does not have 1 to {MAX_TARGET_BYTES} bytes")
    if not fits.all():
        raise ValueError("the mode of an entry does not match its kind")
    if (entries.length > payload_bytes).any() or (
        entries.offset > payload_bytes - entries.length
    ).any():
        raise ValueError("a file reaches beyond the payload")
    if int(block_counts(entries.length).sum()) != len(entries.block_hash):
        raise ValueError("the number of block hashes is wrong")
    paths = entries.paths
    if b"" in paths:
        if any(
            not path and kind != KIND_DIRECTORY
            for path, kind in zip(paths, entries.kind.tolist(), strict=True)
        ):
            raise InvalidPath("an entry that is not a directory has the empty path")
        paths = [path for path in paths if path]
    check_paths(paths)

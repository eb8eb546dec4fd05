"""The records of files, chunks and datasets, and their encoding as values of the key-value store.

Every value is stamp (16 bytes, see `metadata.kv.key_value_store`) · body · checksum. The checksum
is xxh3_64 over key, field, stamp and body, so that a value under a wrong name is detected as well
as a flipped bit. Entries are fixed-width and handled as numpy columns.
"""

from __future__ import annotations

import builtins
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import KIND_TOMBSTONE, Entries, are_links
from chunkstore.chunk_id import ChunkId
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import STAMP_BYTES

RECORD_VERSION: Final = 2
LINK_RECORD_VERSION: Final = 3
"""The version of a symbolic link's record.

Releases that know no links refuse it, and read all others.
"""
_CHECK_BYTES: Final = 8
NO_CHUNK: Final = bytes(16)
"""The chunk of a directory that no entry describes: it exists because something lies in it."""

ENTRY: Final = np.dtype(
    [
        ("version", ">u8"),  # generation << 1 | is a tombstone; with `placed`, the stamp
        ("placed", ">u8"),  # generation of the commit that put it there
        ("chunk", "V16"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("hash", "<u8"),
        ("mtime_ns", "<i8"),
        ("position", "<u4"),
        ("mode", "<u2"),  # st_mode; of a tombstone, the type of what it deletes
        ("record_version", "u1"),
        ("reserved", "u1"),
    ]
)
ENTRY_BYTES: Final = ENTRY.itemsize + _CHECK_BYTES
assert ENTRY_BYTES == 80


def is_tombstone(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which entries are tombstones."""
    return (entries["version"] & np.uint64(1)).astype(bool)


def is_file(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which entries are live files, links included: neither tombstones nor directories."""
    files: npt.NDArray[np.bool_] = (entries["mode"] & 0o170000) != stat.S_IFDIR
    return ~is_tombstone(entries) & files


def record_versions(modes: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Return the record versions of entries with these modes."""
    return np.where(are_links(modes), LINK_RECORD_VERSION, RECORD_VERSION).astype(np.uint8)


def entry_versions(entries: Entries, generation: int) -> npt.NDArray[np.uint64]:
    """Return the column `version` of a chunk's entries.

    An entry's version is the one that it carries, else `generation`, that of the commit that added
    the chunk.
    """
    generations = np.full(len(entries), generation, np.uint64)
    if entries.versions is not None:
        carried = entries.versions["generation"]
        generations = np.where(carried > 0, carried, generations)
    versions: npt.NDArray[np.uint64] = generations << np.uint64(1) | (
        entries.kind == KIND_TOMBSTONE
    )
    return versions


def encode_entries(
    key: bytes, fields: Sequence[bytes], entries: npt.NDArray[np.void]
) -> list[bytes]:
    """Return one value per entry of one map. About 0.3 µs each."""
    return encode_rows([key + field for field in fields], entries)


def encode_rows(names: Sequence[bytes], entries: npt.NDArray[np.void]) -> list[bytes]:
    """Return one value per entry of several maps; `names` are map key and field together."""
    assert entries.dtype == ENTRY  # a copy in another byte order would break the stamps
    blob, size, digest = entries.tobytes(), ENTRY.itemsize, xxhash.xxh3_64_digest
    bodies = [blob[at : at + size] for at in range(0, len(blob), size)]
    return [body + digest(name + body) for name, body in zip(names, bodies, strict=True)]


def decode_entries(
    key: bytes, fields: Sequence[bytes], values: Sequence[bytes]
) -> npt.NDArray[np.void]:
    """Return the entries of these values, the inverse of `encode_entries`.

    Raises `RecordCorrupt`, which names the first value that is not sound.
    """
    _verify_entries(key, fields, values)
    if not values:
        return np.zeros(0, ENTRY)
    padded = np.frombuffer(b"".join(values), np.dtype([("entry", ENTRY), ("check", "V8")]))
    entries = padded["entry"]
    versions = entries["record_version"]
    foreign = (versions != RECORD_VERSION) & (versions != LINK_RECORD_VERSION)
    if foreign.any():
        raise _foreign_version(int(entries["record_version"][foreign][0]))
    return entries


def _verify_entries(key: bytes, fields: Sequence[bytes], values: Sequence[bytes]) -> None:
    digest, size = xxhash.xxh3_64_digest, ENTRY.itemsize
    for field, value in zip(fields, values, strict=True):
        if len(value) != ENTRY_BYTES or digest(key + field + value[:size]) != value[size:]:
            raise RecordCorrupt(f"index record of {field!r} is damaged")


def _foreign_version(version: int) -> RecordCorrupt:
    return RecordCorrupt(
        f"an index record has version {version}; this release reads {RECORD_VERSION} and "
        f"{LINK_RECORD_VERSION}: "
        "rebuild it with `dlcmd recover`"
    )


def sealed(key: bytes, field: bytes, body: bytes) -> bytes:
    """Return a value of the index: the body and a checksum over map key, field and body."""
    return body + xxhash.xxh3_64_digest(key + field + body)


def is_sealed(name: bytes, value: bytes) -> bool:
    """Return whether a value has the checksum of its place; `name` is map key and field."""
    body, check = value[:-_CHECK_BYTES], value[-_CHECK_BYTES:]
    return xxhash.xxh3_64_digest(name + body) == check


def _unseal(key: bytes, field: bytes, value: bytes) -> bytes:
    body = value[:-_CHECK_BYTES]
    if len(body) <= STAMP_BYTES:
        raise RecordCorrupt(f"index record of {field!r} is damaged")
    _verify_seal(key, field, value)
    if body[STAMP_BYTES] != RECORD_VERSION:
        raise _foreign_version(body[STAMP_BYTES])
    return body


def _verify_seal(key: bytes, field: bytes, value: bytes) -> None:
    if not is_sealed(key + field, value):
        raise RecordCorrupt(f"index record of {field!r} is damaged")


_CHUNK = struct.Struct(">QQ" + "BQqIQIIQ")
"""The stamp: retired, deleted count. Then version, generation, time, head bytes, payload bytes,
entries, files, deleted bytes.
"""


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """The record of a chunk: DIESEL §4.1.1's update time, size, counts and deletion bitmap.

    It is a function of the chunk's head and its holes. Holes only grow, so the stamp is (retired,
    number of holes).
    """

    generation: int
    """The generation that added the chunk; for a retired chunk, the one that retired it."""
    updated_ns: int
    """The time of that commit, by its writer's clock."""
    head_bytes: int
    payload_bytes: int
    entry_count: int
    file_count: int
    deleted_count: int
    """The entries (of any kind) that a newer version or a tombstone hides."""
    deleted_bytes: int
    deleted: bytes
    """The bitmap of holes over positions, least significant bit first.

    It has (entry_count + 7) // 8 bytes.
    """
    retired: bool = False
    """True if a commit has retired the chunk; only this remains of the record.

    It is part of the stamp, so that the chunk cannot come back.
    """

    def encode(self, key: bytes, chunk_id: ChunkId) -> bytes:
        """Return the record as a value of the index."""
        body = _CHUNK.pack(
            self.retired,
            self.deleted_count,
            RECORD_VERSION,
            self.generation,
            self.updated_ns,
            self.head_bytes,
            self.payload_bytes,
            self.entry_count,
            self.file_count,
            self.deleted_bytes,
        )
        return sealed(key, chunk_id.value, body + self.deleted)

    @classmethod
    def decode(cls, key: bytes, chunk_id: bytes, value: bytes) -> ChunkRecord:
        """Return the record in a value of the index. Raises `RecordCorrupt`."""
        body = _unseal(key, chunk_id, value)
        if len(body) < _CHUNK.size:
            raise RecordCorrupt(f"index record of {chunk_id!r} is damaged")
        retired, dead, _, generation, updated, head, payload, entries, files, dead_bytes = (
            _CHUNK.unpack_from(body)
        )
        bitmap = body[_CHUNK.size :]
        if retired > 1 or len(bitmap) != (0 if retired else (entries + 7) // 8):
            raise RecordCorrupt(f"index record of {chunk_id!r} is damaged")
        return cls(
            generation,
            updated,
            head,
            payload,
            entries,
            files,
            dead,
            dead_bytes,
            bitmap,
            bool(retired),
        )


_STATE = struct.Struct(">QQ" + "BqQQQQ")
"""The stamp: generation, 0. Then version, time, files, bytes, directories, chunks."""


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset at one generation: update timestamp and totals of what is live."""

    generation: int
    updated_ns: int
    """The time of the commit by its writer's clock: the update timestamp of DIESEL §4.1.3."""
    files: int
    bytes: int
    directories: int
    """The directories without the root."""
    chunks: int

    def encode(self, key: builtins.bytes, field: builtins.bytes) -> builtins.bytes:
        """Return the state as a value of the index."""
        body = _STATE.pack(
            self.generation,
            0,
            RECORD_VERSION,
            self.updated_ns,
            self.files,
            self.bytes,
            self.directories,
            self.chunks,
        )
        return sealed(key, field, body)

    @classmethod
    def decode(
        cls, key: builtins.bytes, field: builtins.bytes, value: builtins.bytes
    ) -> DatasetState:
        """Return the state in a value of the index. Raises `RecordCorrupt`."""
        body = _unseal(key, field, value)
        if len(body) != _STATE.size:
            raise RecordCorrupt(f"index record of {field!r} is damaged")
        generation, _, _, *rest = _STATE.unpack(body)
        return cls(generation, *rest)


EMPTY_STATE: Final = DatasetState(0, 0, 0, 0, 0, 0)

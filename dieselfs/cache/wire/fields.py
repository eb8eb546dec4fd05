"""The fields that the messages of both wires have in common, as msgspec decodes them.

Bounds are annotations, which are checked before anything is built from a value. Functions come in
pairs: one turns a chunk or a block into plain values, the other turns them back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from chunkstore.chunk_format import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, PREAMBLE_BYTES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock

MAX_HEAD_BYTES: Final = PREAMBLE_BYTES + MAX_HEADER_BYTES
"""The limit of a chunk's head."""
MAX_TEXT_BYTES: Final = 8 << 10
"""The limit of texts for people; longer ones are cut."""
CHUNK: Final = struct.Struct(">16sII")
"""The row of a chunk of at most 16 MiB: its id, the bytes of its head and those of its payload."""
_CHUNKS_KEPT: Final = 8192

Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Hash: TypeAlias = Annotated[int, Meta(ge=0)]
"""A number of 64 bits."""
Key: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""The id of a chunk, or of a process in its task."""
Row: TypeAlias = Annotated[bytes, Meta(min_length=CHUNK.size, max_length=CHUNK.size)]
"""A `CHUNK` row."""
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
BlockFields: TypeAlias = Annotated[tuple[Key | Hash, ...], Meta(min_length=3, max_length=7)]
"""The chunk's id, the bytes of its head and of its payload; for a block of a large file also the
file's offset, length and hash, and the number of the block."""


def chunk_row(chunk: ChunkRef) -> bytes:
    """Return the `CHUNK` row of a chunk."""
    return CHUNK.pack(chunk.id.value, chunk.head_bytes, chunk.payload_bytes)


@lru_cache(_CHUNKS_KEPT)  # 1 µs less for a chunk that was named before
def chunk_of(row: bytes) -> ChunkRef:
    """Return the chunk of a row. The same chunk is mostly the same object."""
    chunk_id, head_bytes, payload_bytes = CHUNK.unpack(row)
    if head_bytes > MAX_HEAD_BYTES or payload_bytes > MAX_WHOLE_BYTES:
        raise ValueError("a chunk that is too large")
    return ChunkRef(ChunkId(chunk_id), head_bytes, payload_bytes)


def block_fields(block: CacheBlock) -> BlockFields:
    """Return the fields of a block."""
    chunk, file = block.chunk, block.file
    whole = chunk.id.value, chunk.head_bytes, chunk.payload_bytes
    return whole if file is None else (*whole, file.offset, file.length, file.hash, block.number)


def check_block(fields: Sequence[Any]) -> None:
    """Raise `ValueError` or `TypeError` unless these are the fields of a block in its chunk."""
    id, head_bytes, payload_bytes, *place = fields
    if len(id) != 16 or head_bytes > MAX_HEAD_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError("not a chunk, or one that is too large")
    if place or payload_bytes > MAX_WHOLE_BYTES:
        offset, length, hash, number = place
        is_inside = offset + length <= payload_bytes and number * CACHE_BLOCK_BYTES < length
        if payload_bytes <= MAX_WHOLE_BYTES or not is_inside or not isinstance(hash, int):
            raise ValueError("a block that its chunk does not have")


def block_of(fields: Sequence[Any]) -> CacheBlock:
    """Return the block of these fields, which were checked."""
    id, head_bytes, payload_bytes, *place = fields
    chunk = ChunkRef(ChunkId(id), head_bytes, payload_bytes)
    if not place:
        return CacheBlock(chunk)
    offset, length, hash, number = place
    return CacheBlock(chunk, FileExtent(chunk, offset, length, hash), number)


def cut(text: str) -> str:
    """Return a text, cut at a character if it has more than `MAX_TEXT_BYTES`."""
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")

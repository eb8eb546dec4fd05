"""How every frame is laid out: a prefix of 16 bytes, a header, and bulk bytes that no decoder touches.

The header is one flat msgpack array `[kind, number, field…]`. Its beginning has a fixed width, so that kind and number are read without msgpack; the fields
are scalars, so that what they decode to can never be much more than the bytes that came (nested arrays would make 65 MB of 1 MB).
This is the one place of the package that knows msgpack. Law: docs/peer-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgpack
import xxhash

from chunkstore.chunk_format import MAX_HEADER_BYTES as _MAX_CHUNK_HEADER_BYTES
from chunkstore.chunk_format import PREAMBLE_BYTES
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.stores.object_store import Buffer

PREFIX_BYTES: Final = 16
MAX_HEADER_BYTES: Final = 64 << 10
MAX_MEMBERS_HEADER_BYTES: Final = 640 << 10
"""Of a `Members` answer alone: 1,024 members of 587 bytes at most."""
MAX_CHUNK_HEAD_BYTES: Final = PREAMBLE_BYTES + _MAX_CHUNK_HEADER_BYTES
MAX_BULK_BYTES: Final = MAX_CHUNK_HEAD_BYTES + MAX_WHOLE_BYTES
"""A head with a payload. Who receives knows how many bytes it has asked for, and takes no others."""

PREFIX: Final = struct.Struct("<IIQ")
"""Bytes of the header, bytes of bulk, xxh3_64 of the header with the bytes of bulk as its seed."""
LEAD: Final = struct.Struct(">3sQ")
"""Of every header: array of n, kind, tag of u64; the number."""

Scalar: TypeAlias = bool | int | float | str | bytes | None
Received: TypeAlias = bytes | memoryview


class BadFrame(ValueError):
    """Not a frame, or not within its bounds: the other side is not one of ours, or the bytes were damaged. End the connection."""


def lead_of(kind: int, fields: int) -> bytes:
    """The first three bytes of the headers of a kind."""
    return bytes((0x90 | (fields + 2), kind, 0xCF))


def frame(lead: bytes, number: int, fields: Sequence[Scalar] = (), bulk_bytes: int = 0) -> bytes:
    """Prefix and header."""
    header = LEAD.pack(lead, number) + b"".join(map(msgpack.packb, fields))
    return seal(header, bulk_bytes)


def seal(header: bytes, bulk_bytes: int = 0) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(header, bulk_bytes)
    return PREFIX.pack(len(header), bulk_bytes, checksum) + header


def decode_prefix(buffer: Buffer, *, of_request: bool = False) -> tuple[int, int, int]:
    """Bytes of the header, bytes of bulk, checksum: of the first 16 bytes of `buffer`. Raises `BadFrame` if they are out of bounds.

    A request's header is smaller than an answer's may be, and it has no bulk.
    """
    try:
        header_bytes, bulk_bytes, checksum = PREFIX.unpack_from(buffer)
    except struct.error:
        raise BadFrame("a frame ends in its prefix") from None
    if not LEAD.size <= header_bytes <= (
        MAX_HEADER_BYTES if of_request else MAX_MEMBERS_HEADER_BYTES
    ) or bulk_bytes > (0 if of_request else MAX_BULK_BYTES):
        raise BadFrame(f"a frame of {header_bytes} and {bulk_bytes} bytes is out of bounds")
    return header_bytes, bulk_bytes, checksum


def decode_lead(header: Received, checksum: int, bulk_bytes: int = 0) -> tuple[bytes, int]:
    """The first three bytes, and the number, of a header that is what was sent. Raises `BadFrame`."""
    if xxhash.xxh3_64_intdigest(header, bulk_bytes) != checksum:
        raise BadFrame("the checksum of a frame is wrong")
    try:
        lead, number = LEAD.unpack_from(header)
    except struct.error:
        raise BadFrame("a header is too short") from None
    return lead, number


def decode_fields(header: Received, count: int, max_bytes: int = MAX_HEADER_BYTES) -> list[Scalar]:
    """The `count` fields behind the lead, none of them an array or a map. Raises `BadFrame`, also if they are longer than `max_bytes`."""
    body = header[LEAD.size :]
    unpacker = msgpack.Unpacker(
        max_buffer_size=max_bytes, max_array_len=0, max_map_len=0, max_ext_len=0
    )
    try:
        unpacker.feed(body)
        fields = [unpacker.unpack() for _ in range(count)]
    except Exception as error:  # of many kinds: msgpack's own, of text, of numbers
        raise BadFrame(f"the fields of a header: {type(error).__name__}") from None
    if unpacker.tell() != len(body):
        raise BadFrame("a header has more fields than it says")
    return fields

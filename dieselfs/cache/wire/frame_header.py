"""The layout that all frames share: a prefix of 16 bytes, a header, and bulk bytes.

No decoder touches the bulk bytes. The header is one flat msgpack array `[kind, number, field…]`.
Its beginning has a fixed width, so kind and number are read without msgpack. The fields are
scalars, so the decoded values are never much larger than the bytes received (nested arrays would
make 65 MB of 1 MB).

This is the only module of the wire protocol that uses msgpack. The specification is
docs/peer-protocol.md.
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
"""The limit for a `Members` answer alone: 1,024 members of 587 bytes at most."""
MAX_CHUNK_HEAD_BYTES: Final = PREAMBLE_BYTES + _MAX_CHUNK_HEADER_BYTES
MAX_BULK_BYTES: Final = MAX_CHUNK_HEAD_BYTES + MAX_WHOLE_BYTES
"""The bytes of a head with a payload.

A receiver knows how many bytes it has asked for, and accepts no other number.
"""

PREFIX: Final = struct.Struct("<IIQ")
"""Bytes of the header, bytes of bulk, and xxh3_64 of the header seeded with the bytes of bulk."""
LEAD: Final = struct.Struct(">3sQ")
"""The beginning of every header: the array's length, the kind and the tag of u64; the number."""

Scalar: TypeAlias = bool | int | float | str | bytes | None
Received: TypeAlias = bytes | memoryview


class BadFrame(ValueError):
    """Bytes that are no frame, or a frame that is out of bounds.

    The other side does not speak this protocol, or the bytes were damaged. The connection must end.
    """


def lead_of(kind: int, fields: int) -> bytes:
    """Return the first three bytes of all headers of a kind."""
    return bytes((0x90 | (fields + 2), kind, 0xCF))


def frame(lead: bytes, number: int, fields: Sequence[Scalar] = (), bulk_bytes: int = 0) -> bytes:
    """Return the prefix and the header of a frame."""
    header = LEAD.pack(lead, number) + b"".join(map(msgpack.packb, fields))
    return seal(header, bulk_bytes)


def seal(header: bytes, bulk_bytes: int = 0) -> bytes:
    """Return the header with its prefix in front."""
    checksum = xxhash.xxh3_64_intdigest(header, bulk_bytes)
    return PREFIX.pack(len(header), bulk_bytes, checksum) + header


def decode_prefix(buffer: Buffer, *, of_request: bool = False) -> tuple[int, int, int]:
    """Decode the first 16 bytes of `buffer`: bytes of the header, bytes of bulk, and the checksum.

    Raises `BadFrame` if they are out of bounds. A request has a smaller limit for its header than
    an answer, and no bulk.
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
    """Return the first three bytes and the number of a header, after checking its checksum.

    Raises `BadFrame`.
    """
    if xxhash.xxh3_64_intdigest(header, bulk_bytes) != checksum:
        raise BadFrame("the checksum of a frame is wrong")
    try:
        lead, number = LEAD.unpack_from(header)
    except struct.error:
        raise BadFrame("a header is too short") from None
    return lead, number


def decode_fields(header: Received, count: int, max_bytes: int = MAX_HEADER_BYTES) -> list[Scalar]:
    """Return the `count` fields behind the lead, none of them an array or a map.

    Raises `BadFrame`, also if the fields are longer than `max_bytes`.
    """
    body = header[LEAD.size :]
    unpacker = msgpack.Unpacker(
        max_buffer_size=max_bytes, max_array_len=0, max_map_len=0, max_ext_len=0
    )
    try:
        unpacker.feed(body)
        fields = [unpacker.unpack() for _ in range(count)]
    except Exception as error:  # msgpack raises its own errors, and those of text and numbers
        raise BadFrame(f"the fields of a header: {type(error).__name__}") from None
    if unpacker.tell() != len(body):
        raise BadFrame("a header has more fields than it says")
    return fields

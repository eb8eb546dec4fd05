"""The layout that all frames share: a prefix of 16 bytes, a header, and bulk bytes.

No decoder touches the bulk bytes. The header is one flat msgpack array `[kind, number, field…]`.
Its beginning has a fixed width, so kind and number are read without msgpack. A decoder knows the
types of the fields, so the decoded values are never much larger than the bytes received. The
specification is docs/peer-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Final, TypeAlias

import xxhash
from msgspec import msgpack

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.wire.fields import MAX_HEAD_BYTES

PREFIX_BYTES: Final = 16
MAX_HEADER_BYTES: Final = 64 << 10
MAX_MEMBERS_HEADER_BYTES: Final = 640 << 10
"""The limit for a `Members` answer alone: 1,024 members of 587 bytes at most."""
MAX_BULK_BYTES: Final = MAX_HEAD_BYTES + MAX_WHOLE_BYTES
"""The bytes of a head with a payload.

A receiver knows how many bytes it has asked for, and accepts no other number.
"""

PREFIX: Final = struct.Struct("<IIQ")
"""Bytes of the header, bytes of bulk, and xxh3_64 of the header seeded with the bytes of bulk."""
LEAD: Final = struct.Struct(">3sQ")
"""The beginning of every header: the array's length, the kind and the tag of u64; the number."""

Received: TypeAlias = bytes | memoryview
Decoder: TypeAlias = msgpack.Decoder[tuple[Any, ...]]


class BadFrame(ValueError):
    """Bytes that are no frame, or a frame that is out of bounds.

    The other side does not speak this protocol, or the bytes were damaged. The connection must end.
    """


def lead_of(kind: int, fields: int) -> bytes:
    """Return the first three bytes of all headers of a kind."""
    return bytes((0x90 | (fields + 2), kind, 0xCF))


def frame(lead: bytes, number: int, fields: Sequence[object] = ()) -> bytes:
    """Return the prefix and the header of a frame without bulk."""
    header = LEAD.pack(lead, number) + msgpack.encode(fields)[1:]  # without the array's length
    return PREFIX.pack(len(header), 0, xxhash.xxh3_64_intdigest(header)) + header


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


def decoder_of(types: Sequence[Any]) -> Decoder:
    """Return the decoder of headers with fields of these types."""
    return msgpack.Decoder(GenericAlias(tuple, (int, int, *types)))


def decode_fields(header: Received, decoder: Decoder) -> Sequence[Any]:
    """Return the fields behind the lead. Raises `BadFrame`."""
    try:
        return decoder.decode(header)[2:]
    except ValueError as error:  # msgspec's errors, and those of texts
        raise BadFrame(f"the fields of a header: {error}") from None

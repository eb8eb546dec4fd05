"""Requests and answers as bytes. No I/O here: the owner of a connection reads its bytes.

    prefix = 16 bytes from the stream
    header_bytes, bulk_bytes, checksum = decode_prefix(prefix)
    header = header_bytes from the stream
    number = answer_number(header, checksum, bulk_bytes)
    number, answer = decode_answer(header, checksum, bulk)

`answer_number` names the request that waits for the bulk, so that its length can be checked before
it is received.

Every value is checked before it is used: types, bounds, and that ranges lie inside their chunks.
Invalid bytes raise `BadFrame` and nothing else. The specification, down to bytes, is
docs/peer-protocol.md. `frame_header` has the layout that all frames share, `frame_fields` the
fields in them. `ReadFile` and `Data` are sent for every file that is read from a peer, so each of
them is one `struct`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import xxhash

from dieselfs.cache.wire import frame_fields
from dieselfs.cache.wire.frame_fields import CHUNK, STATUS_FIELDS, Fields, read_row
from dieselfs.cache.wire.frame_header import (
    LEAD,
    MAX_BULK_BYTES,
    MAX_HEADER_BYTES,
    MAX_MEMBERS_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    BadFrame,
    Received,
    decode_fields,
    decode_lead,
    decode_prefix,
    frame,
    lead_of,
)
from dieselfs.cache.wire.messages import (
    Answer,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NotCached,
    Ping,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
    Working,
)

__all__ = [
    "MAX_BULK_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_MEMBERS_HEADER_BYTES",
    "PREFIX_BYTES",
    "BadFrame",
    "answer_number",
    "decode_answer",
    "decode_prefix",
    "decode_request",
    "encode_answer",
    "encode_request",
]

_READ_FILE_LEAD: Final = lead_of(0, 4)
_DATA_LEAD: Final = lead_of(16, 0)

_READ_FILE: Final = struct.Struct(">3sQ2s16sIIsIsIs")
_READ_FILE_FIELDS: Final = struct.Struct(">2s24ssIsIs")
_BIN_24: Final = bytes((0xC4, CHUNK.size))
_U32: Final = b"\xce"
_FALSE: Final = b"\xc2"
_TRUE: Final = b"\xc3"
_FLAGS: Final = (_FALSE, _TRUE)

_seal = PREFIX.pack  # a name of this module is looked up faster than an attribute
_checksum = xxhash.xxh3_64_intdigest


def encode_request(number: int, request: Request) -> bytes:
    """Return the whole frame of a request. `number` is at most 2^64 - 1.

    Takes about 0.4 µs for `ReadFile`, whose values are left for the peer to check.
    """
    if type(request) is not ReadFile:
        lead, fields_of = _ENCODERS[type(request)]
        return frame(lead, number, fields_of(request))
    chunk = request.chunk
    header = _READ_FILE.pack(
        _READ_FILE_LEAD,
        number,
        _BIN_24,
        chunk.id.value,
        chunk.head_bytes,
        chunk.payload_bytes,
        _U32,
        request.start,
        _U32,
        request.length,
        _TRUE if request.may_fetch else _FALSE,
    )
    return _seal(len(header), 0, _checksum(header)) + header


def encode_answer(number: int, answer: Answer, bulk_bytes: int = 0) -> bytes:
    """Return the prefix and the header of an answer.

    `Data` announces `bulk_bytes`, which the caller sends after it; `answer.bulk` is not used. Takes
    about 0.3 µs for `Data`.
    """
    if type(answer) is not Data:
        lead, fields_of = _ENCODERS[type(answer)]
        return frame(lead, number, fields_of(answer))
    header = LEAD.pack(_DATA_LEAD, number)
    return _seal(len(header), bulk_bytes, _checksum(header, bulk_bytes)) + header


def answer_number(header: Received, checksum: int, bulk_bytes: int) -> int:
    """Return the number of the request that is answered, before the bulk is read.

    Raises `BadFrame`.
    """
    return decode_lead(header, checksum, bulk_bytes)[1]


def decode_request(header: Received, checksum: int) -> tuple[int, Request]:
    """Return the number and the request. Raises `BadFrame`. Takes about 1 µs for `ReadFile`."""
    lead, number = decode_lead(header, checksum)
    if lead == _READ_FILE_LEAD:
        return number, _read_file(header)
    found = _REQUESTS.get(lead)
    if found is None:
        raise BadFrame("not a request")
    count, read = found
    return number, read(decode_fields(header, count))


def decode_answer(header: Received, checksum: int, bulk: memoryview) -> tuple[int, Answer]:
    """Return the number and the answer. Raises `BadFrame`. Takes about 0.6 µs for `Data`.

    `bulk` is all that the prefix announces, and becomes `Data.bulk` without a copy.
    """
    lead, number = decode_lead(header, checksum, len(bulk))
    if lead == _DATA_LEAD:
        if len(header) != LEAD.size:
            raise BadFrame("a header has more fields than it says")
        return number, Data(bulk)
    found = _ANSWERS.get(lead)
    if found is None:
        raise BadFrame("not an answer")
    if len(bulk):
        raise BadFrame("bulk follows an answer that has none")
    count, read = found
    limit = MAX_MEMBERS_HEADER_BYTES if read is frame_fields.read_members else MAX_HEADER_BYTES
    return number, read(decode_fields(header, count, limit))


def _read_file(header: Received) -> ReadFile:
    if len(header) != _READ_FILE.size:
        raise BadFrame("not the header of a read")
    tag, row, start_tag, start, length_tag, length, flag = _READ_FILE_FIELDS.unpack_from(
        header, LEAD.size
    )
    if tag != _BIN_24 or start_tag != _U32 or length_tag != _U32 or flag not in _FLAGS:
        raise BadFrame("not the header of a read")
    chunk = read_row(row)
    if start + length > chunk.payload_bytes:
        raise BadFrame("a range that lies outside of its chunk")
    return ReadFile(chunk, start, length, flag == _TRUE)


def _no_fields(_: object) -> Fields:
    return ()


_Row: TypeAlias = tuple[int, int, type[object], Callable[[Any], Fields], Callable[[Fields], Any]]
_TABLE: Final[tuple[_Row, ...]] = (  # kind, number of fields, type, to fields, from fields
    (1, 5, ReadRanges, frame_fields.ranges, frame_fields.read_ranges),
    (2, 2, ReadChunk, frame_fields.chunk, frame_fields.read_chunk),
    (3, 8, ReadBlock, frame_fields.block, frame_fields.read_block),
    (4, 0, Ping, _no_fields, lambda _: Ping()),
    (5, 5, Join, frame_fields.join, frame_fields.read_join),
    (6, 1, Leave, frame_fields.leave, frame_fields.read_leave),
    (17, 0, NotCached, _no_fields, lambda _: NotCached()),
    (18, 1, Failed, frame_fields.failed, frame_fields.read_failed),
    (19, 0, Working, _no_fields, lambda _: Working()),
    (20, STATUS_FIELDS, Pong, frame_fields.pong, frame_fields.read_pong),
    (21, 5, Members, frame_fields.members, frame_fields.read_members),
)
_ENCODERS: Final = {made: (lead_of(kind, count), to) for kind, count, made, to, _ in _TABLE}
_REQUESTS: Final = {lead_of(row[0], row[1]): (row[1], row[4]) for row in _TABLE if row[0] < 16}
_ANSWERS: Final = {lead_of(row[0], row[1]): (row[1], row[4]) for row in _TABLE if row[0] >= 16}

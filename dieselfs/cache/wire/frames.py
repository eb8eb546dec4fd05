"""Requests and answers as bytes. No I/O here: the owner of a connection reads its bytes.

    prefix = 16 bytes from the stream
    header_bytes, bulk_bytes, checksum = decode_prefix(prefix)
    header = header_bytes from the stream
    lead, number = decode_lead(header, checksum, bulk_bytes)
    answer = decode_answer(lead, header, bulk)

The number names the request that waits for the bulk, so that its length can be checked before it is
received.

Every value is checked before it is used: types, bounds, and that ranges lie inside their chunks.
Invalid bytes raise `BadFrame` and nothing else. The specification, down to bytes, is
docs/peer-protocol.md. `ReadFile` and `Data` are sent for every file that is read from a peer, so
each of them is one `struct`; all others are in `_TABLE`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Annotated, Any, Final, TypeAlias, get_args

import xxhash
from msgspec import Meta

from dieselfs.cache.ports.cached_chunks import NodeStatus, PolicyStatus
from dieselfs.cache.ports.member_record import (
    MemberName,
    MemberRow,
    checked_id,
    member_fields,
    member_from,
    printable,
)
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.wire.columns import member_columns, members_of, range_columns, ranges_of
from dieselfs.cache.wire.fields import (
    CHUNK,
    Count,
    Hash,
    Key,
    Row,
    Text,
    block_fields,
    block_of,
    check_block,
    chunk_of,
    chunk_row,
    cut,
)
from dieselfs.cache.wire.frame_header import (
    LEAD,
    PREFIX,
    BadFrame,
    Decoder,
    Received,
    decode_fields,
    decode_lead,
    decoder_of,
    frame,
    lead_of,
)
from dieselfs.cache.wire.messages import (
    MAX_BUCKET_BYTES,
    MAX_JOB_BYTES,
    MAX_POLICY_BYTES,
    MAX_TAGS,
    Answer,
    AskCached,
    AskPolicy,
    CachedBytes,
    ClientMessage,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NameTags,
    NotCached,
    Ping,
    PolicyReport,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Working,
)

_READ_FILE_LEAD: Final = lead_of(0, 4)
_TAGGED_FILE_LEAD: Final = lead_of(0, 5)
_DATA_LEAD: Final = lead_of(16, 0)
_FETCHED_DATA_LEAD: Final = lead_of(16, 1)

_READ_FILE: Final = struct.Struct(">3sQ2s16sIIsIsIs")
_READ_FILE_FIELDS: Final = struct.Struct(">2s24ssIsIs")
_TAG: Final = struct.Struct(">sH")
_FETCHED: Final = struct.Struct(">sQ")
_U16: Final = b"\xcd"
_U64: Final = b"\xcf"
_BIN_24: Final = bytes((0xC4, CHUNK.size))
_U32: Final = b"\xce"
_FALSE: Final = b"\xc2"
_TRUE: Final = b"\xc3"
_FLAGS: Final = (_FALSE, _TRUE)

_seal = PREFIX.pack  # a name of this module is looked up faster than an attribute
_checksum = xxhash.xxh3_64_intdigest


def encode_request(number: int, request: ClientMessage) -> bytes:
    """Return the whole frame of a request. `number` is at most 2^64 - 1.

    Takes about 0.4 µs for `ReadFile`, whose values are left for the peer to check.
    """
    if type(request) is not ReadFile:
        return _encode(number, request)
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
    if request.tags:
        header = _TAGGED_FILE_LEAD + header[3:] + _TAG.pack(_U16, *request.tags)
    return _seal(len(header), 0, _checksum(header)) + header


def encode_answer(number: int, answer: Answer, bulk_bytes: int = 0) -> bytes:
    """Return the prefix and the header of an answer.

    `Data` announces `bulk_bytes`, which the caller sends after it; `answer.bulk` is not used. Takes
    about 0.3 µs for `Data`.
    """
    if type(answer) is not Data:
        return _encode(number, answer)
    if answer.fetched_bytes:
        header = LEAD.pack(_FETCHED_DATA_LEAD, number) + _FETCHED.pack(_U64, answer.fetched_bytes)
    else:
        header = LEAD.pack(_DATA_LEAD, number)
    return _seal(len(header), bulk_bytes, _checksum(header, bulk_bytes)) + header


def decode_request(header: Received, checksum: int) -> tuple[int, ClientMessage]:
    """Return the number and the request. Raises `BadFrame`. Takes about 1 µs for `ReadFile`."""
    lead, number = decode_lead(header, checksum)
    if lead == _READ_FILE_LEAD:
        return number, _read_file(header)
    if lead == _TAGGED_FILE_LEAD:
        return number, _tagged_file(header)
    return number, _decode(header, _REQUESTS.get(lead))


def decode_answer(lead: bytes, header: Received, bulk: memoryview) -> Answer:
    """Return the answer of a header whose lead was decoded. Raises `BadFrame`.

    `bulk` is all that the prefix announces, and becomes `Data.bulk` without a copy.
    """
    if lead == _DATA_LEAD:
        if len(header) != LEAD.size:
            raise BadFrame("a header has more fields than it says")
        return Data(bulk)
    if lead == _FETCHED_DATA_LEAD:
        return Data(bulk, *decode_fields(header, _FETCHED_DATA))
    if len(bulk):
        raise BadFrame("bulk follows an answer that has none")
    answer: Answer = _decode(header, _ANSWERS.get(lead))
    return answer


def _read_file(header: Received) -> ReadFile:
    if len(header) != _READ_FILE.size:
        raise BadFrame("not the header of a read")
    tag, row, start_tag, start, length_tag, length, flag = _READ_FILE_FIELDS.unpack_from(
        header, LEAD.size
    )
    if tag != _BIN_24 or start_tag != _U32 or length_tag != _U32 or flag not in _FLAGS:
        raise BadFrame("not the header of a read")
    try:
        chunk = chunk_of(row)
    except ValueError as error:
        raise BadFrame(str(error)) from None
    if start + length > chunk.payload_bytes:
        raise BadFrame("a range that lies outside of its chunk")
    return ReadFile(chunk, start, length, flag == _TRUE)


def _tagged_file(header: Received) -> ReadFile:
    end = len(header) - _TAG.size
    request = _read_file(header[:end])
    kind, tag = _TAG.unpack_from(header, end)
    if kind != _U16 or tag >= MAX_TAGS:
        raise BadFrame("not the tag of a read")
    return ReadFile(request.chunk, request.start, request.length, request.may_fetch, (tag,))


def _encode(number: int, message: object) -> bytes:
    kind, fields_of = _ENCODERS[type(message)]
    try:
        fields = fields_of(message)
        return frame(lead_of(kind, len(fields)), number, fields)
    except ValueError as error:
        raise BadFrame(str(error)) from None


def _decode(header: Received, reader: _Reader | None) -> Any:
    if reader is None:
        raise BadFrame("not a message that may come here")
    decoder, made = reader
    try:
        return made(*decode_fields(header, decoder))
    except ValueError as error:
        raise BadFrame(str(error)) from None


def _block(request: ReadBlock) -> Sequence[object]:
    if request.block.file is None:
        raise ValueError("a whole chunk is requested with `ReadChunk`")
    return *block_fields(request.block), request.may_fetch, *request.tags


def _read_block(*fields: Any) -> ReadBlock:
    block, (may_fetch, *tags) = fields[:7], fields[7:]
    check_block(block)
    return ReadBlock(block_of(block), may_fetch, tuple(tags))


def _names(message: NameTags) -> Sequence[object]:
    job, epoch, bucket, may_keep = message.tags
    return message.tag, job, epoch, bucket, may_keep


def _name_tags(tag: int, job: str, epoch: int, bucket: str, may_keep: bool) -> NameTags:
    names = printable(job, MAX_JOB_BYTES), epoch, printable(bucket, MAX_BUCKET_BYTES)
    return NameTags(tag, RequestTags(*names, may_keep))


def _failed(what: str) -> Failed:
    if cut(what) != what:  # `Text` bounds characters, of up to four bytes
        raise ValueError("a reason that is too long")
    return Failed(what)


def _policy(policy: str, shadow: str, *counts: int) -> PolicyReport:
    names = printable(policy, MAX_POLICY_BYTES), printable(shadow, MAX_POLICY_BYTES)
    return PolicyReport(PolicyStatus(*names, *counts))


_Tag: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_TAGS)]
_FETCHED_DATA: Final = decoder_of((Count,))
_Reader: TypeAlias = tuple[Decoder, Callable[..., Any]]
_Row: TypeAlias = tuple[
    int, type, tuple[Any, ...], Callable[[Any], Sequence[object]], Callable[..., Any]
]
_TABLE: Final[tuple[_Row, ...]] = (  # kind, class, types of the fields, to fields, from fields
    (1, ReadRanges, (bytes, bytes, bytes, bytes, bool), range_columns, ranges_of),
    (
        *(2, ReadChunk, (Row, bool)),
        lambda request: (chunk_row(request.chunk), request.may_fetch, *request.tags),
        lambda row, may_fetch, *tags: ReadChunk(chunk_of(row), may_fetch, tags),
    ),
    (3, ReadBlock, (Key, *(Hash,) * 6, bool), _block, _read_block),
    (4, Ping, (), lambda _: (), Ping),
    (
        *(5, Join, get_args(MemberRow)),
        lambda request: member_fields(request.member),
        lambda *fields: Join(member_from(fields)),
    ),
    (6, Leave, (MemberName,), lambda request: (checked_id(request.member),), Leave),
    (7, NameTags, (_Tag, str, Count, str, bool), _names, _name_tags),
    (8, AskPolicy, (), lambda _: (), AskPolicy),
    (9, AskCached, (), lambda _: (), AskCached),
    (
        *(17, NotCached, ()),
        lambda answer: (answer.fetched_bytes,) if answer.fetched_bytes else (),
        NotCached,
    ),
    (18, Failed, (Text,), lambda answer: (cut(answer.what),), _failed),
    (19, Working, (), lambda _: (), Working),
    (
        *(20, Pong, (Count,) * len(fields(NodeStatus))),
        lambda answer: astuple(answer.status),
        lambda *counts: Pong(NodeStatus(*counts)),
    ),
    (21, Members, (str, str, str, bytes, bytes), member_columns, members_of),
    (22, PolicyReport, (str, str, *(Count,) * 10), lambda answer: astuple(answer.status), _policy),
    (23, CachedBytes, (Count,), lambda answer: (answer.cached_bytes,), CachedBytes),
)


_LAST_FIELDS: Final[Mapping[type, tuple[Any, ...]]] = {
    ReadRanges: (bytes,),
    ReadChunk: (_Tag,),
    ReadBlock: (_Tag,),
    NotCached: (Count,),
}
"""The last field of a request that carries tags, and of an answer for which bytes were fetched."""


def _readers(kinds: range) -> dict[bytes, _Reader]:
    return {
        lead_of(kind, len(types)): (decoder_of(types), made)
        for kind, message, untagged, _, made in _TABLE
        for types in {untagged, (*untagged, *_LAST_FIELDS.get(message, ()))}
        if kind in kinds
    }


_ENCODERS: Final = {made: (kind, to) for kind, made, _, to, _ in _TABLE}
_REQUESTS: Final = _readers(range(16))
_ANSWERS: Final = _readers(range(16, 32))

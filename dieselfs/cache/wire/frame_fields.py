"""The fields of all messages except the two most frequent ones, `ReadFile` and `Data`.

Functions come in pairs: one turns a message into scalars; the other, `read_…`, turns scalars into a
message, checks each field before it uses it, and raises `BadFrame` for a value that is out of
bounds. Lists travel as columns: raw little-endian numbers, and texts joined by newlines.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import MAX_PAYLOAD_BYTES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.member_record import is_member_id, member_fields, member_from
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.wire.frame_header import MAX_CHUNK_HEAD_BYTES, BadFrame, Scalar
from dieselfs.cache.wire.messages import (
    MAX_MEMBERS,
    MAX_RANGES,
    MAX_RANGES_BYTES,
    Failed,
    Join,
    Leave,
    Members,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadRanges,
)

Fields: TypeAlias = Sequence[Scalar]

CHUNK: Final = struct.Struct(">16sII")
"""The row of a chunk of at most 16 MiB: its id, the bytes of its head and those of its payload."""
STATUS_FIELDS: Final = len(fields(NodeStatus))
MAX_TEXT_BYTES: Final = 8 << 10
"""The limit of the text in `Failed`; longer texts are cut."""

_CHUNK_ROW: Final = np.dtype([("id", "V16"), ("head_bytes", ">u4"), ("payload_bytes", ">u4")])
_ANY_ROW: Final = np.dtype((np.void, CHUNK.size))
_CHUNKS_KEPT: Final = 8192
_MAX_LINE_BYTES: Final = 255
"""The limit of a host, and of a node's name."""
_MAX_COUNT: Final = (1 << 63) - 1
_MAX_U64: Final = (1 << 64) - 1


@lru_cache(_CHUNKS_KEPT)  # 1 µs less for a chunk that was named before
def read_row(row: bytes) -> ChunkRef:
    """Return the chunk of a `CHUNK` row. The same chunk is mostly the same object."""
    if len(row) != CHUNK.size:
        raise BadFrame("not a chunk")
    chunk_id, head_bytes, payload_bytes = CHUNK.unpack(row)
    if head_bytes > MAX_CHUNK_HEAD_BYTES or payload_bytes > MAX_WHOLE_BYTES:
        raise BadFrame("a chunk that is too large")
    return ChunkRef(ChunkId(chunk_id), head_bytes, payload_bytes)


def ranges(request: ReadRanges) -> Fields:
    """Return the fields of a `ReadRanges`.

    Raises `TypeError` for columns of a wider type than those of `ReadRanges`, since their values
    would wrap.
    """
    columns = ((request.which, "<u2"), (request.start, "<u4"), (request.length, "<u4"))
    raw = [column.astype(dtype, casting="safe").tobytes() for column, dtype in columns]
    rows = [
        CHUNK.pack(chunk.id.value, chunk.head_bytes, chunk.payload_bytes)
        for chunk in request.chunks
    ]
    return (b"".join(rows), *raw, request.may_fetch)


def read_ranges(fields: Fields) -> ReadRanges:
    """Return the `ReadRanges` that these fields describe.

    Raises `BadFrame`, also for a range outside its chunk or for too many bytes.
    """
    chunks, which, start, length = map(_bytes, fields[:4])
    count = len(which) // 2
    if not 0 < count <= MAX_RANGES or not 0 < len(chunks) <= MAX_RANGES * CHUNK.size:
        raise BadFrame("no ranges, or too many")
    if (len(which), len(start), len(length)) != (2 * count, 4 * count, 4 * count):
        raise BadFrame("columns of different lengths")
    if len(chunks) % CHUNK.size:
        raise BadFrame("not a column of chunks")
    request = ReadRanges(
        tuple(map(read_row, np.frombuffer(chunks, _ANY_ROW).tolist())),
        np.frombuffer(which, "<u2").astype(np.uint16, copy=False),
        np.frombuffer(start, "<u4").astype(np.uint32, copy=False),
        np.frombuffer(length, "<u4").astype(np.uint32, copy=False),
        _flag(fields[4]),
    )
    _check_ranges(request, np.frombuffer(chunks, _CHUNK_ROW)["payload_bytes"].astype(np.uint64))
    return request


def _check_ranges(request: ReadRanges, payload_bytes: npt.NDArray[np.uint64]) -> None:
    if int(request.which.max()) >= len(payload_bytes):
        raise BadFrame("a range of a chunk that is not named")
    end = request.start.astype(np.uint64) + request.length
    if (end > payload_bytes[request.which]).any():
        raise BadFrame("a range that lies outside of its chunk")
    total = int(request.length.sum(dtype=np.uint64))
    if total > MAX_RANGES_BYTES and len(request.length) > 1:
        raise BadFrame(f"ranges of {total} bytes")


def chunk(request: ReadChunk) -> Fields:
    """Return the fields of a `ReadChunk`."""
    chunk = request.chunk
    row = CHUNK.pack(chunk.id.value, chunk.head_bytes, chunk.payload_bytes)
    return row, request.may_fetch


def read_chunk(fields: Fields) -> ReadChunk:
    """Return the `ReadChunk` that these fields describe."""
    return ReadChunk(read_row(_bytes(fields[0])), _flag(fields[1]))


def block(request: ReadBlock) -> Fields:
    """Return the fields of a `ReadBlock`. Raises `BadFrame` for a block that is a whole chunk."""
    block = request.block
    chunk, file = block.chunk, block.file
    if file is None:
        raise BadFrame("a whole chunk is requested with `ReadChunk`")
    place = (file.offset, file.length, file.hash, block.number)
    return chunk.id.value, chunk.head_bytes, chunk.payload_bytes, *place, request.may_fetch


def read_block(fields: Fields) -> ReadBlock:
    """Return the `ReadBlock` that these fields describe.

    Raises `BadFrame`, also for a chunk of at most 16 MiB, which has no blocks.
    """
    chunk_id = _bytes(fields[0])
    if len(chunk_id) != 16:
        raise BadFrame("not a chunk's id")
    head_bytes = _integer(fields[1], MAX_CHUNK_HEAD_BYTES)
    payload_bytes, offset, length = (_integer(value, MAX_PAYLOAD_BYTES) for value in fields[2:5])
    file_hash, number = (_integer(value, _MAX_U64) for value in fields[5:7])
    if payload_bytes <= MAX_WHOLE_BYTES:
        raise BadFrame("a chunk of this size has no blocks")
    if offset + length > payload_bytes or number * CACHE_BLOCK_BYTES >= length:
        raise BadFrame("a block lies outside of its chunk")
    chunk = ChunkRef(ChunkId(chunk_id), head_bytes, payload_bytes)
    file = FileExtent(chunk, offset, length, file_hash)
    return ReadBlock(CacheBlock(chunk, file, number), _flag(fields[7]))


def join(request: Join) -> Fields:
    """Return the fields of a `Join`. Raises `BadFrame` for a member that is out of bounds."""
    return member_fields(_member(member_fields(request.member)))


def read_join(fields: Fields) -> Join:
    """Return the `Join` that these fields describe."""
    return Join(_member(fields))


def leave(request: Leave) -> Fields:
    """Return the fields of a `Leave`. Raises `BadFrame` for an id that is none."""
    return (check_member_id(request.member),)


def read_leave(fields: Fields) -> Leave:
    """Return the `Leave` that these fields describe."""
    return Leave(check_member_id(fields[0]))


def failed(answer: Failed) -> Fields:
    """Return the fields of a `Failed`, its text cut at `MAX_TEXT_BYTES`."""
    text = answer.what.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    return (text.decode("utf-8", "ignore"),)


def read_failed(fields: Fields) -> Failed:
    """Return the `Failed` that these fields describe."""
    return Failed(check_text(fields[0], MAX_TEXT_BYTES))


def pong(answer: Pong) -> Fields:
    """Return the fields of a `Pong`: those of its `NodeStatus`, in their order."""
    return astuple(answer.status)


def read_pong(fields: Fields) -> Pong:
    """Return the `Pong` that these fields describe."""
    return Pong(NodeStatus(*[_integer(value, _MAX_COUNT) for value in fields]))


def members(answer: Members) -> Fields:
    """Return the fields of a `Members`, one column for each field of a member.

    Raises `BadFrame` for more than `MAX_MEMBERS` members, or for one that is out of bounds.
    """
    if len(answer.members) > MAX_MEMBERS:
        raise BadFrame(f"more than {MAX_MEMBERS} members")
    rows = [member_fields(_member(member_fields(member))) for member in answer.members]
    ids, hosts, ports, weights, nodes = zip(*rows, strict=True) if rows else [()] * 5
    texts = ["\n".join(map(str, column)) for column in (ids, hosts, nodes)]
    return *texts, np.array(ports, "<u2").tobytes(), np.array(weights, "<u8").tobytes()


def read_members(fields: Fields) -> Members:
    """Return the `Members` that these fields describe."""
    ports, weights = map(_bytes, fields[3:])
    count = len(ports) // 2
    if count > MAX_MEMBERS or (len(ports), len(weights)) != (2 * count, 8 * count):
        raise BadFrame("not columns of members")
    texts = [check_text(value, count * (_MAX_LINE_BYTES + 1)) for value in fields[:3]]
    ids, hosts, nodes = [text.split("\n") if count else [] for text in texts]
    if not len(ids) == len(hosts) == len(nodes) == count:
        raise BadFrame("columns of different lengths")
    port_of, weight_of = np.frombuffer(ports, "<u2"), np.frombuffer(weights, "<u8")
    rows = zip(ids, hosts, port_of.tolist(), weight_of.tolist(), nodes, strict=True)
    return Members(tuple(map(_member, rows)))


def _member(fields: Fields) -> Member:
    try:
        return member_from(list(fields))
    except ValueError:
        raise BadFrame("not a member") from None


def check_member_id(value: Scalar) -> MemberId:
    """Return the value if it is a member's id. Raises `BadFrame`."""
    if not isinstance(value, str) or not is_member_id(value):
        raise BadFrame("not a member's id")
    return value


def check_text(value: Scalar, limit: int) -> str:
    """Return the value if it is a text of at most `limit` bytes in UTF-8. Raises `BadFrame`."""
    if not isinstance(value, str) or len(value.encode(errors="replace")) > limit:
        raise BadFrame("not a text within its bounds")
    return value


def _integer(value: Scalar, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:  # a bool is an int to `isinstance`
        raise BadFrame("not an integer within its bounds")
    return value


def _flag(value: Scalar) -> bool:
    if not isinstance(value, bool):
        raise BadFrame("not a flag")
    return value


def _bytes(value: Scalar) -> bytes:
    if not isinstance(value, bytes):
        raise BadFrame("not bytes")
    return value

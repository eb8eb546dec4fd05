"""The messages between nodes that travel as columns: `ReadRanges` and `Members`.

Columns are raw little-endian numbers, and texts joined by newlines. Functions come in pairs: one
turns a message into columns; the other turns them back, and raises `ValueError` if they are out of
bounds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.cache.ports.member_record import member_fields, member_from
from dieselfs.cache.wire.fields import CHUNK, chunk_of, chunk_row
from dieselfs.cache.wire.messages import (
    MAX_MEMBERS,
    MAX_RANGES,
    MAX_RANGES_BYTES,
    Members,
    ReadRanges,
)

_CHUNK_ROW: Final = np.dtype([("id", "V16"), ("head_bytes", ">u4"), ("payload_bytes", ">u4")])
_ANY_ROW: Final = np.dtype((np.void, CHUNK.size))


def range_columns(request: ReadRanges) -> tuple[bytes | bool, ...]:
    """Return the fields of a `ReadRanges`: with a column of tags, if it carries them.

    Raises `TypeError` for columns of a wider type than those of `ReadRanges`, since their values
    would wrap.
    """
    columns = ((request.which, "<u2"), (request.start, "<u4"), (request.length, "<u4"))
    which, start, length = (
        column.astype(dtype, casting="safe").tobytes() for column, dtype in columns
    )
    chunks = b"".join(map(chunk_row, request.chunks))
    tags = (np.array(request.tags, "<u2").tobytes(),) if request.tags else ()
    return chunks, which, start, length, request.may_fetch, *tags


def ranges_of(
    chunks: bytes,
    which: bytes,
    start: bytes,
    length: bytes,
    may_fetch: bool,
    tags: bytes | None = None,
) -> ReadRanges:
    """Return the `ReadRanges` of these fields: each range lies in its chunk."""
    count = len(which) // 2
    if not 0 < count <= MAX_RANGES or not 0 < len(chunks) <= MAX_RANGES * CHUNK.size:
        raise ValueError("no ranges, or too many")
    if (len(which), len(start), len(length)) != (2 * count, 4 * count, 4 * count):
        raise ValueError("columns of different lengths")
    if len(chunks) % CHUNK.size:
        raise ValueError("not a column of chunks")
    if tags is not None and len(tags) * CHUNK.size != len(chunks) * 2:
        raise ValueError("not a column of tags")
    request = ReadRanges(
        tuple(map(chunk_of, np.frombuffer(chunks, _ANY_ROW).tolist())),
        np.frombuffer(which, "<u2").astype(np.uint16, copy=False),
        np.frombuffer(start, "<u4").astype(np.uint32, copy=False),
        np.frombuffer(length, "<u4").astype(np.uint32, copy=False),
        may_fetch,
        () if tags is None else tuple(np.frombuffer(tags, "<u2").tolist()),
    )
    _check_ranges(request, np.frombuffer(chunks, _CHUNK_ROW)["payload_bytes"].astype(np.uint64))
    return request


def _check_ranges(request: ReadRanges, payload_bytes: npt.NDArray[np.uint64]) -> None:
    if int(request.which.max()) >= len(payload_bytes):
        raise ValueError("a range of a chunk that is not named")
    end = request.start.astype(np.uint64) + request.length
    if (end > payload_bytes[request.which]).any():
        raise ValueError("a range that lies outside of its chunk")
    total = int(request.length.sum(dtype=np.uint64))
    if total > MAX_RANGES_BYTES and len(request.length) > 1:
        raise ValueError(f"ranges of {total} bytes")


def member_columns(answer: Members) -> tuple[str, str, str, bytes, bytes]:
    """Return the fields of a `Members`, one column for each field of a member.

    Raises `ValueError` for more than `MAX_MEMBERS` members, or for one that is out of bounds.
    """
    if len(answer.members) > MAX_MEMBERS:
        raise ValueError(f"more than {MAX_MEMBERS} members")
    rows = map(member_fields, answer.members)
    ids, hosts, ports, weights, nodes = zip(*rows, strict=True) if answer.members else [()] * 5
    texts = "\n".join(ids), "\n".join(hosts), "\n".join(nodes)
    return *texts, np.array(ports, "<u2").tobytes(), np.array(weights, "<u8").tobytes()


def members_of(ids: str, hosts: str, nodes: str, ports: bytes, weights: bytes) -> Members:
    """Return the `Members` of these fields."""
    count = len(ports) // 2
    if count > MAX_MEMBERS or (len(ports), len(weights)) != (2 * count, 8 * count):
        raise ValueError("not columns of members")
    if not count and not ids and not hosts and not nodes:
        return Members(())
    numbers = np.frombuffer(ports, "<u2").tolist(), np.frombuffer(weights, "<u8").tolist()
    texts = [text.split("\n", count) for text in (ids, hosts, nodes)]
    rows = zip(*texts[:2], *numbers, texts[2], strict=True)
    return Members(tuple(map(member_from, rows)))

"""Requests and answers as bytes. No I/O here: whoever has a connection reads 16 bytes, then a header, then bulk.

    prefix = 16 bytes from the stream
    header_bytes, bulk_bytes, checksum = decode_prefix(prefix)
    header = header_bytes from the stream
    answer_number(header, checksum, bulk_bytes)     who waits for the bulk that follows, and whether that is what it asked for
    number, answer = decode_answer(header, checksum, bulk)

Everything is checked before it is believed: types, bounds, and that ranges lie inside of their chunks. What is not in order raises `BadFrame`, and nothing else.
The law, down to bytes, is docs/peer-protocol.md; `frame_header` has the layout that all frames share.
"""

from __future__ import annotations

from dieselfs.peercache.frame_header import (
    MAX_BULK_BYTES,
    MAX_HEADER_BYTES,
    MAX_MEMBERS_HEADER_BYTES,
    PREFIX_BYTES,
    BadFrame,
    Received,
    decode_lead,
    decode_prefix,
)
from dieselfs.peercache.messages import Answer, Request

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


def encode_request(number: int, request: Request) -> bytes:
    """The whole frame. `number` is at most 2^64 - 1. `AssertionError` for what is out of bounds: it is our own."""
    raise NotImplementedError


def encode_answer(number: int, answer: Answer, bulk_bytes: int = 0) -> bytes:
    """Prefix and header; of `Data`, the `bulk_bytes` that are announced follow, sent by the caller (`answer.bulk` is not looked at)."""
    raise NotImplementedError


def answer_number(header: Received, checksum: int, bulk_bytes: int) -> int:
    """Which request is answered, known before the bulk is read. Raises `BadFrame`."""
    return decode_lead(header, checksum, bulk_bytes)[1]


def decode_request(header: Received, checksum: int) -> tuple[int, Request]:
    """Number and request. Raises `BadFrame`."""
    raise NotImplementedError


def decode_answer(header: Received, checksum: int, bulk: memoryview) -> tuple[int, Answer]:
    """Number and answer; `bulk` is all that the prefix announces, and becomes `Data.bulk` as it is. Raises `BadFrame`."""
    raise NotImplementedError

"""What of a request is in memory: the bytes to send, as views of what is held, or the pieces that would have to be brought first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from chunkstore.chunk_source import ChunkRef
from dieselfs.node_memory.piece import Piece
from dieselfs.peercache.held_chunks import HeldChunks, HeldRanges
from dieselfs.peercache.messages import ReadChunk, ReadFile, ReadPiece, ReadRanges

Read: TypeAlias = ReadFile | ReadRanges | ReadChunk | ReadPiece


class OutOfRange(ValueError):
    """What is held is shorter than the request believes."""


def held_ranges(held: HeldChunks, read: Read) -> Sequence[memoryview] | None:
    """The parts of its bulk, in order; None if any of it is not held. Raises `OutOfRange`."""
    if isinstance(read, ReadRanges):
        payloads = []
        for chunk in read.chunks:
            payload = held.payload(chunk.id)
            if payload is None:
                return _separate_ranges(held, read)
            payloads.append(payload)
        lengths = read.length.tolist()
        parts = [
            payloads[which][start : start + length]
            for which, start, length in zip(
                read.which.tolist(), read.start.tolist(), lengths, strict=True
            )
        ]
        # A slice beyond the end is shorter than it should be.
        if sum(map(len, parts)) != sum(lengths):
            raise OutOfRange("a range lies outside of its chunk")
        return parts
    if isinstance(read, ReadFile):
        payload = held.payload(read.chunk.id)
        if payload is None:
            return _separate_ranges(held, read)
        part = payload[read.start : read.start + read.length]
        if len(part) != read.length:
            raise OutOfRange("a range lies outside of its chunk")
        return (part,)
    if isinstance(read, ReadChunk):
        payload, head = held.payload(read.chunk.id), held.head(read.chunk.id)
        if payload is None or head is None:
            return None
        if (len(head), len(payload)) != (read.chunk.head_bytes, read.chunk.payload_bytes):
            raise OutOfRange("a chunk is of another length")
        return head, payload
    piece = held.piece(read.piece)
    if piece is None:
        return None
    if len(piece) != read.piece.length:
        raise OutOfRange("a piece is of another length")
    return (piece,)


def missing_pieces(held: HeldChunks, read: Read) -> Sequence[Piece]:
    """What is to be brought, each once; empty if that is of no use: all is held but for a head that was not kept."""
    if isinstance(read, ReadPiece):
        pieces = {read.piece: None}
    elif isinstance(read, ReadFile | ReadRanges) and isinstance(held, HeldRanges):
        missing = [
            held.unit(chunk, start, length)
            for chunk, start, length in _ranges_of(read)
            if _range(held, chunk, start, length) is None
        ]
        return list(dict.fromkeys(missing))
    elif isinstance(read, ReadRanges):
        pieces = {Piece(chunk): None for chunk in read.chunks}
    else:
        pieces = {Piece(read.chunk): None}
    return [piece for piece in pieces if held.piece(piece) is None]


def _separate_ranges(held: HeldChunks, read: ReadFile | ReadRanges) -> Sequence[memoryview] | None:
    """Of chunks that are not all held."""
    if not isinstance(held, HeldRanges):
        return None
    parts = []
    for chunk, start, length in _ranges_of(read):
        part = _range(held, chunk, start, length)
        if part is None:
            return None
        if len(part) != length:
            raise OutOfRange("a range lies outside of its chunk")
        parts.append(part)
    return parts


def _range(held: HeldRanges, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
    payload = held.payload(chunk.id)
    if payload is None:
        return held.part(chunk, start, length)
    return payload[start : start + length]


def _ranges_of(read: ReadFile | ReadRanges) -> Iterator[tuple[ChunkRef, int, int]]:
    if isinstance(read, ReadFile):
        yield read.chunk, read.start, read.length
        return
    for which, start, length in zip(
        read.which.tolist(), read.start.tolist(), read.length.tolist(), strict=True
    ):
        yield read.chunks[which], start, length

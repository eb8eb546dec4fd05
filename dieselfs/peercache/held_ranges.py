"""What of a request is in memory: the bytes to send, as views of what is held, or the pieces that would have to be brought first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dieselfs.node_memory.piece import Piece
from dieselfs.peercache.held_chunks import HeldChunks
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
                return None
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
            return None
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
    elif isinstance(read, ReadRanges):
        pieces = {Piece(chunk): None for chunk in read.chunks}
    else:
        pieces = {Piece(read.chunk): None}
    return [piece for piece in pieces if held.piece(piece) is None]

"""A node's memory made of plain buffers, whose fetches a test decides on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.node_memory.piece import PIECE_BYTES, Piece
from dieselfs.peercache.held_chunks import NodeStatus

CHUNK_BYTES = 256 << 10
HEAD_BYTES = 300


def chunk(number: int, size: int = CHUNK_BYTES) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), HEAD_BYTES, size)


def content(ref: ChunkRef) -> bytes:
    """Of its payload, the same in every process."""
    return random.Random(ref.id.value).randbytes(ref.payload_bytes)


def head(ref: ChunkRef) -> bytes:
    return random.Random(ref.id.value[::-1]).randbytes(ref.head_bytes)


def large_piece(number: int) -> Piece:
    """The second, and last, piece of a file in a large chunk."""
    ref = ChunkRef(ChunkId(number.to_bytes(16, "big")), HEAD_BYTES, 20 << 20)
    return Piece(ref, FileExtent(ref, 100, PIECE_BYTES + 5000, 0), 1)


class PlainChunks:
    """Implements `HeldChunks`."""

    def __init__(self, chunks: Iterable[ChunkRef] = ()) -> None:
        self.payloads: dict[ChunkId, memoryview] = {}
        self.heads: dict[ChunkId, memoryview] = {}
        self.pieces: dict[str, memoryview] = {}
        self.coming: set[str] = set()
        self.brought: list[str] = []
        self.fetch: Callable[[Piece], None] = self.keep
        """What `bring` does, in the thread that calls it."""
        self.state = NodeStatus(budget_bytes=1 << 30)
        self._lock = threading.Lock()
        for ref in chunks:
            self.keep(Piece(ref))

    def keep(self, piece: Piece) -> None:
        if piece.file is None:
            self.heads[piece.chunk.id] = memoryview(head(piece.chunk))
            self.payloads[piece.chunk.id] = memoryview(content(piece.chunk))
        else:
            self.pieces[piece.name] = memoryview(content(piece.chunk)[: piece.length])

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return self.payloads.get(chunk)

    def head(self, chunk: ChunkId) -> memoryview | None:
        return self.heads.get(chunk)

    def piece(self, piece: Piece) -> memoryview | None:
        if piece.file is None:
            return self.payloads.get(piece.chunk.id)
        return self.pieces.get(piece.name)

    def is_coming(self, piece: Piece) -> bool:
        return piece.name in self.coming

    def bring(self, piece: Piece) -> None:
        with self._lock:
            self.brought.append(piece.name)
        self.fetch(piece)

    def status(self) -> NodeStatus:
        return self.state

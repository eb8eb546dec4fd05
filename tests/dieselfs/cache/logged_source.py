"""A source of chunks that every process makes up alike, and that tells in a file what was asked of
it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt
from tests.eventually import eventually

CHUNK_BYTES = 64 << 10
CORRUPT = 13
"""The number of a chunk whose first half is damaged."""


def chunk(number: int, size: int = CHUNK_BYTES) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, size)


def extent(ref: ChunkRef, offset: int = 0, length: int | None = None) -> FileExtent:
    return FileExtent(ref, offset, ref.payload_bytes - offset if length is None else length, 0)


def content(ref: ChunkRef) -> bytes:
    """Different in each chunk, and in each of its 4 KiB."""
    block = random.Random(ref.id.value).randbytes(4093)
    return (block * (ref.payload_bytes // len(block) + 1))[: ref.payload_bytes]


@dataclass
class LoggedSource:
    """Implements `ChunkSource`; pickles. Each payload asked for adds a byte to `log`, each range a
    byte to `log`.ranges."""

    log: Path
    gate: Path | None = None
    """Whole payloads are given out once this file is there."""

    def payload(self, chunk: ChunkRef) -> memoryview:
        _append(self.log)
        if self.gate is not None:
            eventually(self.gate.exists, "an open gate")
        if int.from_bytes(chunk.id.value, "big") == CORRUPT:
            raise Corrupt(f"chunk {chunk.id} is corrupt")
        return memoryview(content(chunk))

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        _append(Path(f"{self.log}.ranges"))
        at = file.offset + start
        if int.from_bytes(file.chunk.id.value, "big") == CORRUPT and at < CHUNK_BYTES // 2:
            raise Corrupt(f"a file of chunk {file.chunk.id} is corrupt")
        return memoryview(content(file.chunk))[at : at + length]

    @property
    def payloads(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def ranges(self) -> int:
        path = Path(f"{self.log}.ranges")
        return path.stat().st_size if path.exists() else 0


def _append(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b".")
    os.close(fd)

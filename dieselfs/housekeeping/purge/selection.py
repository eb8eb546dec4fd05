"""The choice of chunks that a purge rewrites. Pure functions.

It takes the emptiest chunks, until few enough holes are left, and small ones if there are several.
A hole costs its bytes in the payload and its share of the head. A large file alone in its chunk is
either live or dead, so it is never moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import MAX_ENTRIES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_writer import DEFAULT_TARGET_BYTES
from metadata.records import ChunkRecord

_SEVERAL: Final = 8
"""The number of small chunks that are worth a merge.

Eight below a quarter of the target become at most three, one of them small, so that the next purge
finds nothing to merge.
"""


@dataclass(frozen=True, slots=True)
class ChunkFill:
    """The live part of a chunk's object."""

    id: ChunkId
    live_bytes: int
    """Live bytes of files."""
    live_head_bytes: int
    """The share of the head that describes live entries."""
    hole_bytes: int
    """The rest of the object."""

    @classmethod
    def of(cls, chunk_id: bytes, record: ChunkRecord) -> ChunkFill:
        """Return the fill of a chunk from its record."""
        live_entries = record.entry_count - record.deleted_count
        live_head = record.head_bytes * live_entries // max(record.entry_count, 1)
        live = max(record.payload_bytes - record.deleted_bytes, 0) if live_entries else 0
        holes = record.head_bytes - live_head + record.payload_bytes - live
        return cls(ChunkId(chunk_id), live, live_head, holes)

    @property
    def moved_bytes(self) -> int:
        """Bytes that a purge moves to new chunks."""
        return self.live_bytes + self.live_head_bytes

    @property
    def emptiness(self) -> float:
        """The share of holes in the object: 0 to 1."""
        return self.hole_bytes / max(self.hole_bytes + self.moved_bytes, 1)


def choose(
    chunks: Mapping[bytes, ChunkRecord], leave: float, small_bytes: int
) -> tuple[ChunkFill, ...]:
    """Return the chunks to rewrite: the emptiest first, then small ones by id.

    `chunks` are all that are not retired. The holes in the others are at most `leave` times the
    live bytes of all.
    """
    fills = {chunk_id: ChunkFill.of(chunk_id, record) for chunk_id, record in chunks.items()}
    with_holes = [fill for fill in fills.values() if _has_holes(chunks, fill)]
    holes = sum(fill.hole_bytes for fill in with_holes)
    allowed = leave * sum(fill.live_bytes for fill in fills.values())
    by_emptiness = sorted(with_holes, key=lambda fill: (-fill.emptiness, fill.id))
    chosen: list[ChunkFill] = []
    for fill in by_emptiness:
        if holes <= allowed and fill.moved_bytes:  # dead chunks are retired anyway
            break
        chosen.append(fill)
        holes -= fill.hole_bytes
    taken = {fill.id for fill in chosen}
    small = [
        fill
        for chunk_id, fill in sorted(fills.items())
        if fill.id not in taken and _is_small(chunks[chunk_id], small_bytes)
    ]
    return (*chosen, *(small if len(small) >= _SEVERAL else ()))


def rounds(chosen: tuple[ChunkFill, ...], round_bytes: int) -> Iterator[tuple[ChunkFill, ...]]:
    """Yield the chosen chunks in parts of about `round_bytes`.

    The size counts live bytes and all heads. The chunks of a part are sorted by id, so that files
    that were packed together stay together.
    """
    part: list[ChunkFill] = []
    size = 0
    for fill in chosen:
        cost = fill.moved_bytes + min(fill.hole_bytes, _HEAD_COST)
        if part and size + cost > round_bytes:
            yield tuple(sorted(part, key=lambda fill: fill.id))
            part, size = [], 0
        part.append(fill)
        size += cost
    if part:
        yield tuple(sorted(part, key=lambda fill: fill.id))


_HEAD_COST: Final = 64 << 10
"""About the most that is kept of a chunk in memory until its round is committed."""


def target_of(chunks: Mapping[bytes, ChunkRecord]) -> int:
    """Return the size of chunks that the dataset was packed with, as far as it is known.

    It is that of the largest chunk with several files.
    """
    sizes = (record.payload_bytes for record in chunks.values() if record.file_count > 1)
    return min(max([DEFAULT_TARGET_BYTES, *sizes]), 1 << 30)


def _has_holes(chunks: Mapping[bytes, ChunkRecord], fill: ChunkFill) -> bool:
    record = chunks[fill.id.value]
    return record.deleted_count > 0 or not record.entry_count


def _is_small(record: ChunkRecord, small_bytes: int) -> bool:
    return (
        record.head_bytes + record.payload_bytes < small_bytes
        and record.entry_count < MAX_ENTRIES // 4
    )

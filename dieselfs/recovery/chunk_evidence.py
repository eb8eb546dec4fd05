"""What a chunk's head says of generations: of its own and, by what it deletes or carries along, of others' (docs/decisions/0008).

Kept small, about 20 bytes a deletion or moved entry and a bit for each other entry, so that it fits for a whole dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chunkstore.chunk_format import KIND_DELETION, KIND_FILE, ChunkHead, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version that a deletion hides or that a moved entry carries along."""

    generation: int
    chunk: ChunkId
    """Where the entry lay when it was seen."""
    position: int


@dataclass(frozen=True, slots=True)
class ChunkEvidence:
    """Of one sound head."""

    ref: ChunkRef
    dataset: DatasetRef
    file_count: int
    seen: Sequence[SeenVersion]
    """Of every deletion and every moved entry."""
    own_files: bytes
    """Bit p & 7 of byte p >> 3: the entry at position p is a file of the chunk's own generation. (A directory's version follows what is
    put below it; a moved entry has the version that it carries.)"""

    @classmethod
    def of(cls, head: ChunkHead) -> ChunkEvidence:
        entries = head.entries
        own = entries.kind == KIND_FILE
        seen: list[SeenVersion] = []
        if entries.versions is not None:
            carried = entries.versions["generation"] > 0
            own = own & ~carried
            rows = entries.versions[carried | (entries.kind == KIND_DELETION)]
            seen = [
                SeenVersion(generation, ChunkId(bytes(chunk)), position)
                for generation, chunk, position, _ in rows.tolist()
                if generation
            ]
        return cls(
            ChunkRef(head.chunk_id, head.head_bytes, head.payload_bytes),
            head.dataset,
            int((entries.kind == KIND_FILE).sum()),
            seen,
            np.packbits(own, bitorder="little").tobytes(),
        )

    @property
    def newest_seen(self) -> int:
        """The chunk was committed after this generation."""
        return max((version.generation for version in self.seen), default=0)

    def has_own_file_at(self, position: int) -> bool:
        byte = position >> 3
        return byte < len(self.own_files) and bool(self.own_files[byte] & 1 << (position & 7))

"""The stored content of files that a dataset has, read and verified before a put skips them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES, ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, NotFound
from dieselfs.packing.comparison import Present
from metadata.errors import RecordCorrupt
from metadata.namespace import Namespace

_FILES_AT_ONCE: Final = 64
"""Small files that are read together: 16 MiB at most."""
_DAMAGE: Final = (Corrupt, NotFound)


class StoredCopies:
    """The stored content of one dataset's files. For one thread.

    Costs a read of the whole content, and of each chunk's head once. Calls raise `Unavailable` if
    the store does not answer, since that says nothing about the content.
    """

    def __init__(self, namespace: Namespace, reader: ChunkReader) -> None:
        self._namespace = namespace
        self._reader = reader
        self._chunks: dict[bytes, ChunkRef | None] = {}
        """The chunks by id; None for one that is missing or has a damaged head."""

    def damaged(self, files: Mapping[bytes, Present]) -> set[bytes]:
        """Return the names of the files whose stored content is damaged or missing."""
        extents = {name: self._extent(file) for name, file in files.items()}
        found = {name for name, extent in extents.items() if extent is None}
        small: dict[bytes, FileExtent] = {}
        large: dict[bytes, FileExtent] = {}
        for name, extent in extents.items():
            if extent is not None:
                (large if extent.length > BLOCK_BYTES else small)[name] = extent
        found.update(self._damaged_small(small))
        found.update(name for name, extent in large.items() if not self._is_readable(extent))
        return found

    def _damaged_small(self, files: Mapping[bytes, FileExtent]) -> Iterator[bytes]:
        left = iter(files.items())
        while batch := dict(islice(left, _FILES_AT_ONCE)):
            try:
                self._reader.read_many(list(batch.values()))
            except _DAMAGE:
                yield from (name for name, file in batch.items() if not self._is_readable(file))

    def _is_readable(self, file: FileExtent) -> bool:
        try:
            for at in range(0, file.length, MAX_WHOLE_BYTES):
                self._reader.read(file, at, min(MAX_WHOLE_BYTES, file.length - at))
        except _DAMAGE:
            return False
        return True

    def _extent(self, file: Present) -> FileExtent | None:
        if file.chunk not in self._chunks:
            self._chunks[file.chunk] = self._sound_chunk(file.chunk)
        chunk = self._chunks[file.chunk]
        return None if chunk is None else FileExtent(chunk, file.offset, file.size, file.hash)

    def _sound_chunk(self, chunk_id: bytes) -> ChunkRef | None:
        try:
            record = self._namespace.chunk(chunk_id)
            self._reader.head(ChunkId(chunk_id), record.head_bytes)
        except (*_DAMAGE, RecordCorrupt):
            return None
        return ChunkRef(ChunkId(chunk_id), record.head_bytes, record.payload_bytes)

"""What peers, of a task or of a cache cluster, stand in front of: a source that answers everything, and knows how bytes from elsewhere are verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import Expected
from chunkstore.chunk_source import ChunkRef, FileExtent, ManyFilesSource


class VerifiedSource(ManyFilesSource, Protocol):
    """As `ChunkReader` does it. Thread-safe."""

    @property
    def dataset(self) -> DatasetRef: ...

    @property
    def expected(self) -> Expected | None:
        """By which whole chunks are verified."""
        ...

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """(head, payload) of a chunk of at most 16 MiB."""
        ...

    def verified(self, data: memoryview, chunk: ChunkRef) -> memoryview:
        """The payload of a chunk's object that came from anywhere; `Corrupt`."""
        ...

    def block_hashes(self, file: FileExtent) -> npt.NDArray[np.uint64]:
        """Of each 256 KiB of a large file."""
        ...

    def read_many(self, files: Sequence[FileExtent]) -> Sequence[bytes | memoryview]: ...

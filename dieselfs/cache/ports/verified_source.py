"""The source behind the peers of a task or of a cache cluster.

It answers every read, and it verifies bytes that came from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import Expected
from chunkstore.chunk_source import ChunkRef, FileExtent, ManyFilesSource


class VerifiedSource(ManyFilesSource, Protocol):
    """A source with the checks of `ChunkReader`. Thread-safe."""

    @property
    def dataset(self) -> DatasetRef:
        """The dataset whose chunks are read."""
        ...

    @property
    def expected(self) -> Expected | None:
        """The expected contents, by which whole chunks are verified."""
        ...

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return (head, payload) of a chunk of at most 16 MiB."""
        ...

    def verified(self, data: memoryview, chunk: ChunkRef) -> memoryview:
        """Return the payload of a chunk's object that came from anywhere. Raises `Corrupt`."""
        ...

    def block_hashes(self, file: FileExtent) -> npt.NDArray[np.uint64]:
        """Return the hash of each 256 KiB of a large file."""
        ...

    def read_many(self, files: Sequence[FileExtent]) -> Sequence[bytes | memoryview]:
        """Return whole files, in order."""
        ...

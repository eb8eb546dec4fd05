"""A file of a dataset as a Python file object."""

from __future__ import annotations

import io
from typing import Any

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.chunk_source import ChunkSource, FileExtent


def open_file(source: ChunkSource, file: FileExtent) -> io.BufferedReader:
    """Return a seekable binary file; each read of up to 256 KiB is one verified range."""
    return io.BufferedReader(_File(source, file), BLOCK_BYTES)


class _File(io.RawIOBase):
    def __init__(self, source: ChunkSource, file: FileExtent) -> None:
        self._source, self._file, self._at = source, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.length}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self._file.length - self._at))
        if length:
            target[:length] = self._source.read(self._file, self._at, length)
            self._at += length
        return length

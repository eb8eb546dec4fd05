"""A large source file as the payload of its chunk: read in parts to hash it, then to store it.

Memory: one part of 4 MiB, whatever the file's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import xxhash

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.errors import BadSource
from dieselfs.dataset.unchanged_reads import SourceChanged

PART_BYTES: Final = 4 << 20
assert PART_BYTES % BLOCK_BYTES == 0


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A large file as the payload of its chunk; fails unless its content still has the hash.

    It fails too once the put has been interrupted, so that no interrupt waits for its end.
    """

    path: bytes
    size: int
    hash: int
    stopped: Callable[[], bool]

    def __iter__(self) -> Iterator[bytes]:
        whole = xxhash.xxh3_64()
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for part in file_parts(fd, self.size):
                    if self.stopped():
                        raise BadSource(f"{os.fsdecode(self.path)}: the put was interrupted")
                    whole.update(part)
                    yield part
            finally:
                os.close(fd)
        except OSError as error:
            raise BadSource(f"{os.fsdecode(self.path)}: {error.strerror}") from error
        except SourceChanged:
            raise self._changed() from None
        if whole.intdigest() != self.hash:
            raise self._changed()

    def _changed(self) -> BadSource:
        return BadSource(
            f"{os.fsdecode(self.path)} changed while it was packed: run the same command again"
        )


def file_parts(fd: int, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file in parts of 4 MiB, multiples of a hash block.

    The parts do not depend on how much a read returns. Raises `SourceChanged` if the file is
    shorter.
    """
    for at in range(0, size, PART_BYTES):
        part = os.pread(fd, min(PART_BYTES, size - at), at)
        if len(part) != min(PART_BYTES, size - at):
            raise SourceChanged
        yield part

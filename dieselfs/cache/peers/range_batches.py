"""The files that one peer is asked for, packed into few `ReadRanges` messages. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chunkstore.chunk_source import ChunkRef, FileExtents
from dieselfs.cache.wire.messages import MAX_RANGES, MAX_RANGES_BYTES, ReadRanges


@dataclass(frozen=True, slots=True, eq=False)
class RangeBatch:
    """One message, and the files that it asks for."""

    positions: Sequence[int]
    """The positions of its files among those that are read."""
    request: ReadRanges


def batches(files: FileExtents, positions: Sequence[int], may_fetch: bool) -> Iterator[RangeBatch]:
    """Pack the files at `positions`, in order, into as few messages as their bounds allow.

    All files are in chunks of at most 16 MiB. Takes about 0.5 µs a file.
    """
    lengths = files.length
    start = total = 0
    for at, position in enumerate(positions):
        length = lengths[position]
        if at - start == MAX_RANGES or (at > start and total + length > MAX_RANGES_BYTES):
            yield _batch(files, positions[start:at], may_fetch)
            start, total = at, 0
        total += length
    if len(positions) > start:
        yield _batch(files, positions[start:], may_fetch)


def by_chunk(batch: RangeBatch, files: FileExtents) -> list[RangeBatch]:
    """Split a batch into one message for each chunk's files."""
    positions: dict[int, list[int]] = {}
    for position in batch.positions:
        positions.setdefault(files.which[position], []).append(position)
    return [_batch(files, part, batch.request.may_fetch) for part in positions.values()]


def _batch(files: FileExtents, positions: Sequence[int], may_fetch: bool) -> RangeBatch:
    numbers: dict[int, int] = {}
    chunks: list[ChunkRef] = []
    which = []
    for position in positions:
        chunk = files.which[position]
        number = numbers.get(chunk)
        if number is None:
            number = numbers[chunk] = len(chunks)
            chunks.append(files.chunks[chunk])
        which.append(number)
    request = ReadRanges(
        tuple(chunks),
        np.array(which, np.uint16),
        np.array([files.offset[position] for position in positions], np.uint32),
        np.array([files.length[position] for position in positions], np.uint32),
        may_fetch,
    )
    return RangeBatch(positions, request)

"""How files become messages: in order, each once, within the bounds."""

from __future__ import annotations

import random

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent, FileExtents
from dieselfs.cache.peers.range_batches import RangeBatch, batches, by_chunk
from dieselfs.cache.wire.messages import MAX_RANGES, MAX_RANGES_BYTES

CHUNKS = [ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, 16 << 20) for number in range(9)]


def made(count: int, largest: int, seed: int = 0) -> FileExtents:
    draw = random.Random(seed)
    lengths = [draw.randrange(largest) for _ in range(count)]
    return FileExtents.of(
        FileExtent(draw.choice(CHUNKS), draw.randrange(1 << 20), length, at)
        for at, length in enumerate(lengths)
    )


def said(files: FileExtents, made: list[RangeBatch]) -> list[FileExtent]:
    """The files that messages ask for, in order."""
    return [
        FileExtent(batch.request.chunks[number], start, length, files.hash[position])
        for batch in made
        for number, start, length, position in zip(
            batch.request.which.tolist(),
            batch.request.start.tolist(),
            batch.request.length.tolist(),
            batch.positions,
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("count", "largest"),
    [(0, 9), (1, 9), (MAX_RANGES, 9), (MAX_RANGES + 1, 9), (2000, 100_000), (30, 12 << 20)],
)
def test_every_file_is_asked_for_once_within_the_bounds(count: int, largest: int) -> None:
    files = made(count, largest)
    positions = list(range(count))
    random.Random(1).shuffle(positions)
    messages = list(batches(files, positions, may_fetch=True))
    assert [position for batch in messages for position in batch.positions] == positions
    assert said(files, messages) == [files[position] for position in positions]
    for batch in messages:
        request = batch.request
        assert request.may_fetch
        assert 1 <= len(request.which) <= MAX_RANGES
        assert len(request.which) == 1 or int(request.length.sum()) <= MAX_RANGES_BYTES
        assert len(set(request.chunks)) == len(request.chunks) == int(request.which.max()) + 1
    if largest == 9:
        assert len(messages) == -(-count // MAX_RANGES), "as few as can be"


def test_a_message_of_one_chunk_each() -> None:
    files = made(100, 1000)
    [batch] = batches(files, range(100), may_fetch=False)
    parts = by_chunk(batch, files)
    assert len(parts) == len(batch.request.chunks)
    assert all(len(part.request.chunks) == 1 and not part.request.may_fetch for part in parts)
    assert sorted(at for part in parts for at in part.positions) == list(range(100))
    assert sorted(said(files, parts), key=lambda file: file.hash) == list(files)


def test_columns_are_the_files_they_were_made_of() -> None:
    draw = random.Random(3)
    files = [FileExtent(draw.choice(CHUNKS), at, at + 1, at + 2) for at in range(50)]
    columns = FileExtents.of(files)
    assert list(columns) == files
    assert columns[10:20] == files[10:20]
    assert columns[-1] == files[-1]
    assert len(columns) == 50
    assert FileExtents.of(columns) is columns
    assert len(set(columns.chunks)) == len(columns.chunks)
    assert list(FileExtents.of([])) == []

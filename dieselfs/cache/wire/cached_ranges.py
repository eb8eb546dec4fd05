"""The cached bytes that answer a request, or the blocks that must be loaded first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import CachedChunks, CachedRanges
from dieselfs.cache.wire.messages import ReadBlock, ReadChunk, ReadFile, ReadRanges

Read: TypeAlias = ReadFile | ReadRanges | ReadChunk | ReadBlock


class OutOfRange(ValueError):
    """The cached data is shorter than the request assumes."""


def cached_ranges(cached: CachedChunks, read: Read) -> Sequence[memoryview] | None:
    """Return the parts of the request's bulk, in order, as views of the cached bytes.

    None if any of them is not cached. Raises `OutOfRange`.
    """
    parts: Sequence[memoryview | None]
    if isinstance(read, ReadFile | ReadRanges):
        ranges = _ranges(read)
        parts, lengths = _parts(cached, *ranges), [length for _, _, length in ranges[1]]
    elif isinstance(read, ReadChunk):
        parts = cached.head(read.chunk.id), cached.payload(read.chunk.id)
        lengths = [read.chunk.head_bytes, read.chunk.payload_bytes]
    else:
        parts, lengths = (cached.block(read.block),), [read.block.length]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    # A slice beyond the end is shorter than it should be.
    if [*map(len, found)] != lengths:
        raise OutOfRange("the cached chunk has another length than the request assumes")
    return found


def missing_blocks(cached: CachedChunks, read: Read) -> Sequence[CacheBlock]:
    """Return the blocks to load, each once.

    The list is empty if loading would not help: all is cached but a head that was not kept.
    """
    if isinstance(read, ReadBlock):
        blocks = {read.block: None}
    elif isinstance(read, ReadChunk):
        blocks = {CacheBlock(read.chunk): None}
    else:
        chunks, ranges = _ranges(read)
        if isinstance(cached, CachedRanges):
            parts = zip(ranges, _parts(cached, chunks, ranges), strict=True)
            missing = (range for range, part in parts if part is None)
            units = (cached.unit(chunks[which], *range) for which, *range in missing)
            return list(dict.fromkeys(units))
        blocks = {CacheBlock(chunk): None for chunk in chunks}
    return [block for block in blocks if cached.block(block) is None]


def _ranges(
    read: ReadFile | ReadRanges,
) -> tuple[Sequence[ChunkRef], Sequence[tuple[int, int, int]]]:
    """Return the chunks, and of each range the place of its chunk, its start and its length."""
    if isinstance(read, ReadFile):
        return (read.chunk,), ((0, read.start, read.length),)
    columns = read.which.tolist(), read.start.tolist(), read.length.tolist()
    return read.chunks, list(zip(*columns, strict=True))


def _parts(
    cached: CachedChunks, chunks: Sequence[ChunkRef], ranges: Sequence[tuple[int, int, int]]
) -> Sequence[memoryview | None]:
    """Return the bytes of each range, or None for one that is not cached."""
    payloads = [cached.payload(chunk.id) for chunk in chunks]
    whole = [payload for payload in payloads if payload is not None]
    if len(whole) == len(chunks):
        return [whole[which][start : start + length] for which, start, length in ranges]
    if not isinstance(cached, CachedRanges):
        return (None,)
    parts: list[memoryview | None] = []
    for which, start, length in ranges:
        payload = payloads[which]
        if payload is None:
            parts.append(cached.part(chunks[which], start, length))
        else:
            parts.append(payload[start : start + length])
    return parts

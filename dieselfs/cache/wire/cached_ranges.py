"""The cached bytes that answer a request, or the blocks that must be loaded first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    if isinstance(read, ReadRanges):
        payloads = []
        for chunk in read.chunks:
            payload = cached.payload(chunk.id)
            if payload is None:
                return _separate_ranges(cached, read)
            payloads.append(payload)
        lengths = read.length.tolist()
        parts = [
            payloads[which][start : start + length]
            for which, start, length in zip(
                read.which.tolist(), read.start.tolist(), lengths, strict=True
            )
        ]
        # A slice beyond the end is shorter than it should be.
        if sum(map(len, parts)) != sum(lengths):
            raise OutOfRange("a range lies outside of its chunk")
        return parts
    if isinstance(read, ReadFile):
        payload = cached.payload(read.chunk.id)
        if payload is None:
            return _separate_ranges(cached, read)
        part = payload[read.start : read.start + read.length]
        if len(part) != read.length:
            raise OutOfRange("a range lies outside of its chunk")
        return (part,)
    if isinstance(read, ReadChunk):
        payload, head = cached.payload(read.chunk.id), cached.head(read.chunk.id)
        if payload is None or head is None:
            return None
        if (len(head), len(payload)) != (read.chunk.head_bytes, read.chunk.payload_bytes):
            raise OutOfRange("the length of a chunk differs")
        return head, payload
    block = cached.block(read.block)
    if block is None:
        return None
    if len(block) != read.block.length:
        raise OutOfRange("the length of a block differs")
    return (block,)


def missing_blocks(cached: CachedChunks, read: Read) -> Sequence[CacheBlock]:
    """Return the blocks to load, each once.

    The list is empty if loading would not help: all is cached but a head that was not kept.
    """
    if isinstance(read, ReadBlock):
        blocks = {read.block: None}
    elif isinstance(read, ReadFile | ReadRanges) and isinstance(cached, CachedRanges):
        missing = [
            cached.unit(chunk, start, length)
            for chunk, start, length in _ranges_of(read)
            if _range(cached, chunk, start, length) is None
        ]
        return list(dict.fromkeys(missing))
    elif isinstance(read, ReadRanges):
        blocks = {CacheBlock(chunk): None for chunk in read.chunks}
    else:
        blocks = {CacheBlock(read.chunk): None}
    return [block for block in blocks if cached.block(block) is None]


def _separate_ranges(
    cached: CachedChunks, read: ReadFile | ReadRanges
) -> Sequence[memoryview] | None:
    """Return the parts of a request for chunks that are not all cached whole."""
    if not isinstance(cached, CachedRanges):
        return None
    parts = []
    for chunk, start, length in _ranges_of(read):
        part = _range(cached, chunk, start, length)
        if part is None:
            return None
        if len(part) != length:
            raise OutOfRange("a range lies outside of its chunk")
        parts.append(part)
    return parts


def _range(cached: CachedRanges, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
    payload = cached.payload(chunk.id)
    if payload is None:
        return cached.part(chunk, start, length)
    return payload[start : start + length]


def _ranges_of(read: ReadFile | ReadRanges) -> Iterator[tuple[ChunkRef, int, int]]:
    if isinstance(read, ReadFile):
        yield read.chunk, read.start, read.length
        return
    for which, start, length in zip(
        read.which.tolist(), read.start.tolist(), read.length.tolist(), strict=True
    ):
        yield read.chunks[which], start, length

"""Where the bytes of one file lie now: which parts of a read stack have its chunk, and why.

It is for people (`dlcmd why`), so it asks each part, and may block for a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkstore.chunk_source import FileExtent
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import blocks_of

if TYPE_CHECKING:
    from chunkstore.chunk_format import DatasetRef
    from chunkstore.ssd.policy_explanation import ChunkExplanation
    from chunkstore.ssd.reader_tags import ReaderTags
    from chunkstore.ssd.segments import Placed
    from chunkstore.ssd.tier import SsdTier


@dataclass(frozen=True, slots=True)
class SsdPlace:
    """The part of a file that a node's SSD tier has."""

    folder: str
    in_service: bool
    cached_bytes: int
    """Bytes of the segments that the file touches; 0 while the tier is out of service."""
    regions: tuple[int, ...]
    """The regions in which they lie."""
    policy: ChunkExplanation | None
    """What the cache policy knows of the chunk; None without one."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The places of one file's bytes, from the nearest to the farthest."""

    chunk: str
    chunk_bytes: int
    """The size of the chunk's object."""
    file_bytes: int
    node_memory_bytes: int
    """Bytes of the file that are in node memory."""
    ssd: SsdPlace | None
    """None without an SSD tier of this node."""
    cache_node: str | None
    """The cache node that owns the chunk; None without a cache cluster, or while it has no node."""
    not_eligible: str | None = None
    """Why no SSD keeps what this mount reads; None if they may."""


def in_node_memory(folder: TaskFolder, file: FileExtent) -> int:
    """Return how many bytes of a file are in a task's memory. One system call a block."""
    found = 0
    for block, part in blocks_of(file, 0, file.length):
        if (folder.chunks / block.name).exists():
            found += min(part.stop, block.length) - part.start
    return found


def on_ssd(
    tier: SsdTier, folder: str, dataset: DatasetRef, file: FileExtent, tags: ReaderTags | None
) -> SsdPlace:
    """Return which part of a file the tier has, and what its policy knows of the chunk."""
    runner = tier.runner
    start = file.chunk.head_bytes + file.offset
    chunk = file.chunk.id.value
    policy = None if runner is None else runner.explain(dataset.id, chunk, start, tags)
    segments = tier.segments
    if segments is None:
        return SsdPlace(folder, False, 0, (), policy)
    size = segments.segment_bytes
    first, last = start // size, (start + max(file.length, 1) - 1) // size
    found: Sequence[Placed | None] | None = tier.call(
        lambda: segments.places(chunk, first, last - first + 1), 0
    )
    placed = [place for place in found or () if place is not None]
    return SsdPlace(
        folder,
        found is not None,
        sum(place.length for place in placed),
        tuple(sorted({place.region for place in placed})),
        policy,
    )

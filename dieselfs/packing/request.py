"""What is asked of a put, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from chunkstore.chunk_writer import DEFAULT_TARGET_BYTES
from dieselfs.packing.source_tree import (
    BATCH_FILES,
    EntryBatch,
    SkippedEntries,
    SourceTree,
    listed_batches,
)

OPEN_CHUNKS: Final = 32
"""Half of what a writer has by itself, since runs of names come mixed: half the memory, and the first chunk is full, and under way, after half the time
(docs/decisions/0004-scatter-by-runs.md)."""


@dataclass(frozen=True, slots=True)
class FileList:
    """Files named one by one, relative to `base`, for `--files-from`."""

    base: bytes
    target: bytes
    paths: Sequence[bytes]
    follow_links: bool = True


@dataclass(frozen=True, slots=True)
class PackRequest:
    """What to pack and how."""

    sources: Sequence[SourceTree | FileList]
    jobs: int = 1
    order: str = "scatter"
    """`scatter`, `path` or `given` (see `chunkstore.chunk_writer`). The latter two pack with one process, whatever `jobs` says."""
    seed: int = 0
    target_bytes: int = DEFAULT_TARGET_BYTES
    open_chunks: int = OPEN_CHUNKS
    """Of each process, in the order `scatter`."""
    checksum: bool = False


@dataclass(slots=True)
class PackProgress:
    """What has happened so far; read it from any thread."""

    files_found: int = 0
    """By the walk that looks first; the total, once `walked`."""
    walked: bool = False
    files_committed: int = 0
    """Acknowledged: durable and in the dataset."""
    bytes_committed: int = 0
    chunks_committed: int = 0
    files_unchanged: int = 0
    failed: list[str] = field(default_factory=list)
    """Files that could not be read after all; a reason each."""
    special: list[bytes] = field(default_factory=list)
    """Sockets, pipes and devices, left out."""
    on_change: Callable[[PackProgress], None] = lambda progress: None
    """Called from several threads after a change, for the first time by the caller's, once all processes are forked: from then on
    it may start threads."""

    def changed(self) -> None:
        self.on_change(self)


def batches_of(
    sources: Sequence[SourceTree | FileList], skipped: SkippedEntries
) -> Iterator[EntryBatch]:
    """All files of the sources."""
    return (run for source in sources for run in batches_of_source(source, skipped))


def batches_of_source(
    source: SourceTree | FileList, skipped: SkippedEntries, batch_files: int = BATCH_FILES
) -> Iterator[EntryBatch]:
    if isinstance(source, FileList):
        return listed_batches(source.base, source.target, source.paths, batch_files)
    return source.batches(skipped, batch_files)

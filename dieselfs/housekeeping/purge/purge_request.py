"""The request, the plan and the report of a purge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.keep_together import KeepTogether
from dieselfs.housekeeping.purge.selection import ChunkFill
from dieselfs.housekeeping.retention import GRACE_S, RetiredChunk

DEFAULT_LEAVE: Final = 0.01
DEFAULT_SMALL_BYTES: Final = 1 << 20
DEFAULT_ROUND_BYTES: Final = 1 << 30
"""Live bytes that a round moves.

A kill loses at most these, and they lie twice in the store before the first old chunk may go.
"""


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """The extent of a purge."""

    leave: float = DEFAULT_LEAVE
    """Holes that may remain, as a share of the live bytes; 0 for none."""
    small_bytes: int = DEFAULT_SMALL_BYTES
    """Chunks below this are merged if there are several; with 0 they stay."""
    grace_s: float = GRACE_S
    """The time for which a retired chunk is kept for readers without lease, tag or snapshot."""
    round_bytes: int = DEFAULT_ROUND_BYTES
    """Live bytes and heads moved by one commit."""
    target_bytes: int | None = None
    """The size of the new chunks; None for what the dataset remembers.

    Datasets of older releases remember nothing: then that of their chunks, and at least 4 MiB.
    """
    keep_together: KeepTogether | None = None
    """The files that share a chunk, if they are neighbours; None for what the dataset remembers."""


@dataclass(frozen=True, slots=True)
class DamagedChunk:
    """A chunk that could not be read and was left alone."""

    id: ChunkId
    reason: str


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """The work that a purge would do now."""

    retired: tuple[ChunkFill, ...]
    """Chunks with holes, and small ones."""
    deletable: tuple[RetiredChunk, ...]
    """Chunks that earlier purges retired."""
    waiting: tuple[RetiredChunk, ...]
    dataset_bytes: int
    """Bytes of all objects of the dataset."""
    live_bytes: int
    """Bytes of live files."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """The result of a purge."""

    bytes_before: int
    """Bytes of all objects of the dataset: chunks, commits, snapshots."""
    bytes_after: int
    live_bytes: int
    """Bytes of live files, at the end."""
    rounds: int
    """Commits made."""
    chunks_retired: int
    chunks_dead: int
    """Retired chunks in which nothing was live."""
    chunks_added: int
    files_moved: int
    bytes_moved: int
    deletions_dropped: int
    """Tombstones that hid nothing any more."""
    chunks_deleted: int
    bytes_deleted: int
    waiting: tuple[RetiredChunk, ...]
    """Retired chunks that must stay for now."""
    pinned: frozenset[ChunkId]
    """Chunks of `waiting` that a snapshot, a tag or a lease names.

    The others wait for the grace period.
    """
    unreadable: tuple[str, ...]
    """Reasons why tags and leases cannot be read.

    They may name anything, so nothing was deleted.
    """
    damaged: tuple[DamagedChunk, ...]

    @property
    def changed(self) -> bool:
        """True if anything was done."""
        return bool(self.rounds or self.chunks_deleted)

"""What a purge is asked for, what it would do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from chunkstore.chunk_id import ChunkId
from dieselfs.retention import GRACE_S, RetiredChunk

DEFAULT_LEAVE: Final = 0.01
DEFAULT_SMALL_BYTES: Final = 1 << 20
DEFAULT_ROUND_BYTES: Final = 1 << 30
"""What a kill costs at the most, and what lies twice in the store before the first old chunk may go."""


class PurgeProgress(Protocol):
    """Told of what was moved. Called from one thread."""

    def advance(self, files: int, size_bytes: int) -> None: ...

    def expect(self, files: int, size_bytes: int) -> None:
        """What is to be moved altogether, or what is known of it by now."""
        ...


class NoPurgeProgress:
    """Nobody watches."""

    def advance(self, files: int, size_bytes: int) -> None:
        pass

    def expect(self, files: int, size_bytes: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """How far a purge goes."""

    leave: float = DEFAULT_LEAVE
    """Holes that may remain, as a share of the live bytes; 0: none."""
    small_bytes: int = DEFAULT_SMALL_BYTES
    """Chunks below this are merged if there are several; 0: they stay."""
    grace_s: float = GRACE_S
    """How long a retired chunk is kept for those who read it without saying so."""
    round_bytes: int = DEFAULT_ROUND_BYTES
    """Live bytes and heads moved by one commit."""
    target_bytes: int | None = None
    """Size of the new chunks; None: that of the dataset's, and at least 4 MiB."""


@dataclass(frozen=True, slots=True)
class DamagedChunk:
    """A chunk that could not be read, and so was left alone."""

    id: ChunkId
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk with holes, or a small one, that a purge would retire."""

    id: ChunkId
    live_bytes: int
    """Of files that would be moved."""
    hole_bytes: int
    """Of the object, that would be free."""


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge would do now."""

    retired: tuple[PlannedChunk, ...]
    deletable: tuple[RetiredChunk, ...]
    """Of earlier purges."""
    waiting: tuple[RetiredChunk, ...]
    dataset_bytes: int
    """All objects of the dataset."""
    live_bytes: int
    """Of live files."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did."""

    bytes_before: int
    """All objects of the dataset: chunks, commits, snapshots."""
    bytes_after: int
    live_bytes: int
    """Of live files, at the end."""
    rounds: int
    """Commits made."""
    chunks_retired: int
    chunks_dead: int
    """Of those retired: nothing was live in them."""
    chunks_added: int
    files_moved: int
    bytes_moved: int
    deletions_dropped: int
    """Deletions that hid nothing any more."""
    chunks_deleted: int
    bytes_deleted: int
    waiting: tuple[RetiredChunk, ...]
    """Retired chunks that must stay for now."""
    pinned: frozenset[ChunkId]
    """Those of `waiting` that a snapshot, a tag or a lease names; the others wait for the grace period."""
    unreadable: tuple[str, ...]
    """Tags and leases that can't be read, and why: they may name anything, so nothing was deleted."""
    damaged: tuple[DamagedChunk, ...]

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.rounds or self.chunks_deleted)

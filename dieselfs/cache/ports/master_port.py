"""The requests that a member of a task makes of its master.

They are the same in the master's own process (`master.Master`) and over its socket
(`remote_master.RemoteMaster`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dieselfs.cache.ports.block import CacheBlock


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Counters of one task's node memory since its master began, unless stated otherwise."""

    budget_bytes: int = 0
    cached_bytes: int = 0
    """Bytes in files, being fetched, or evicted but still mapped. The current value."""
    blocks: int = 0
    """The current number of cached blocks."""
    hits: int = 0
    """Requests for blocks that were cached.

    Readers that find the file do not ask the master: they count for themselves.
    """
    misses: int = 0
    """Requests for blocks that were not cached, or were being fetched."""
    fetches: int = 0
    fetched_bytes: int = 0
    failed_fetches: int = 0
    prefetched: int = 0
    """Fetches that were made ahead of any reader."""
    prefetched_used: int = 0
    """Prefetched blocks that a reader has mapped since."""
    prefetched_wasted: int = 0
    """Prefetched blocks that were evicted before any reader mapped them."""
    evictions: int = 0
    evicted_bytes: int = 0
    not_kept: int = 0
    """Fetches that were refused for lack of room (`CacheFull`)."""
    members: int = 0
    """The current number of connected members."""
    window_bytes: int = 0
    """The current bytes of clients' plans that are being fetched, or were fetched and not read yet.

    They are a part of `cached_bytes`. A mount counts its plans itself.
    """
    late: int = 0
    """Chunks of these plans that arrived when their reader had already reached their first file."""


@dataclass(frozen=True, slots=True)
class MemoryScrub:
    """The result of verifying the chunks that node memory holds."""

    blocks: int
    """The blocks that were verified, damaged ones too."""
    size_bytes: int
    damaged: tuple[str, ...]
    """The names of the blocks that were damaged and are evicted."""


class MasterPort(Protocol):
    """The interface of a master to one member.

    Thread-safe; every call blocks. A call on a master that has died raises `MasterGone`.
    """

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """Return when the block's file is in the folder. Concurrent callers share one fetch.

        `ahead`: no reader waits for it yet.

        Raises `CacheFull` if the block cannot be kept, because the cached blocks stay or are
        mapped; or what `ChunkSource` raises.
        """
        ...

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """Fetch the blocks in the background, in order, as far as there is room. Return at once."""
        ...

    def mapped(self, name: str) -> None:
        """Note that this member maps the block from now on. No answer is awaited."""
        ...

    def unmapped(self, name: str) -> None:
        """Note that this member has unmapped the block. No answer is awaited."""
        ...

    def discard(self, name: str) -> None:
        """Evict the block if it is cached.

        A block of this node's share of its task stays, since other nodes ask for it.
        """
        ...

    def expect(self, names: Sequence[str]) -> None:
        """Expect the uses of these blocks, in order; a block may occur again.

        They replace what this member expected before; [] ends it. What other members expect stays.
        """
        ...

    def progress(self, used: int) -> None:
        """Note that the first `used` of the expected uses are over."""
        ...

    def set_budget(self, budget_bytes: int) -> None:
        """Ask for this budget. The greatest budget that a connected member asks for counts."""
        ...

    def set_quota(self, quota_bytes: int | None, window_bytes: int = 0) -> None:
        """Tell how much of node memory is allocated to the dataset; None: no quota is known.

        The greatest quota that a connected member tells counts, and is no less than the windows of
        all members' plans together. Under a quota nothing is evicted for another block, unless an
        order is known; less quota evicts at random.
        """
        ...

    def follow(self, plan: Path) -> None:
        """Prefetch for the reader of a plan file (`dieselfs.prefetch.plan_file`).

        This goes on until another plan is given or the file is gone. Raises `PlanTooLarge`.
        """
        ...

    def statistics(self) -> MemoryStatistics:
        """Return the counters of this node memory."""
        ...

    def scrub(self) -> MemoryScrub:
        """Verify all cached blocks, and evict the damaged ones: about 0.25 s a GiB."""
        ...

    def close(self) -> None:
        """End the membership."""
        ...


class CacheObserver(Protocol):
    """A subscriber to the evictions of a master, in the master's process."""

    def evicted(self, name: str) -> None:
        """Note that the block was evicted.

        The master's lock is held: return at once, and call no master.
        """
        ...

    def release_evicted(self) -> None:
        """Unmap the evicted blocks, and tell the master. The lock is not held.

        It is called soon after evictions, and always before a fetch waits for room.
        """
        ...


class FetchingMaster(Protocol):
    """A `MasterPort` as far as fetches go."""

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None: ...

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None: ...


def fetch_ahead(master: FetchingMaster, blocks: Sequence[CacheBlock]) -> None:
    """Return when the blocks are in node memory: several at a time, ahead of any reader.

    Raises what `MasterPort.fetch` raises. Blocks that have come by then stay.
    """
    if len(blocks) > 1:
        master.prefetch(blocks)  # then each is waited for
    for block in blocks:
        master.fetch(block, ahead=True)

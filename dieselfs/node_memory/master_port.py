"""What a member of a task asks of its master: the same in the master's own process (`master.Master`) and over its socket
(`remote_master.RemoteMaster`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dieselfs.node_memory.piece import CacheBlock


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Of one task's node memory, counted by its master since it began, unless said otherwise."""

    budget_bytes: int = 0
    cached_bytes: int = 0
    """In files, being fetched, and evicted but still mapped. As of now."""
    blocks: int = 0
    """As of now."""
    hits: int = 0
    """Asked for when they were there already. Readers that find the file do not ask: they count for themselves."""
    misses: int = 0
    """Asked for when they were not there, or were on their way."""
    fetches: int = 0
    fetched_bytes: int = 0
    failed_fetches: int = 0
    prefetched: int = 0
    """Of the fetches, those made ahead of any reader."""
    prefetched_used: int = 0
    """Of those, mapped by a reader since."""
    prefetched_wasted: int = 0
    """Of those, evicted before anybody mapped them."""
    evictions: int = 0
    evicted_bytes: int = 0
    not_kept: int = 0
    """Fetches refused for want of room (`CacheFull`)."""
    members: int = 0
    """Connected. As of now."""
    window_bytes: int = 0
    """Of those held, what is under way or was fetched for the plans of clients and is not read yet. As of now. A mount counts its plans itself."""
    late: int = 0
    """Chunks of these plans that came when their reader was at their first file already."""


class MasterPort(Protocol):
    """Thread-safe; every call blocks. A call on a master that has died raises `MasterGone`."""

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """Return when the piece's file is in the folder; one fetch however many ask. `ahead`: nobody reads it yet.

        Raises `CacheFull` (it can't be kept: what is there stays, or is mapped), or what `ChunkSource` raises.
        """
        ...

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """Fetch them in the background, in order, as far as there is room. Returns at once."""
        ...

    def mapped(self, name: str) -> None:
        """This member maps the piece from now on. No answer is awaited."""
        ...

    def unmapped(self, name: str) -> None:
        """It does not any more."""
        ...

    def discard(self, name: str) -> None:
        """Evict the piece, if it is there. One of this node's share of its task stays: other nodes ask for it."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """The pieces that will be used from now on, in order; a piece may occur again. Replaces what was expected before; [] ends it."""
        ...

    def progress(self, used: int) -> None:
        """The first `used` of those expected are done with."""
        ...

    def set_budget(self, budget_bytes: int) -> None:
        """Of the budgets that connected members ask for, the greatest counts."""
        ...

    def follow(self, plan: Path) -> None:
        """Fetch ahead of the readers of a plan file (`dieselfs.plan.plan_file`), until another one is given or its file is gone.

        Raises `PlanTooLarge`.
        """
        ...

    def statistics(self) -> MemoryStatistics: ...

    def close(self) -> None: ...


class CacheObserver(Protocol):
    """Who wants to know what comes into the folder and leaves it. Called by a thread of the member's own."""

    def arrived(self, name: str) -> None: ...

    def evicted(self, name: str) -> None: ...

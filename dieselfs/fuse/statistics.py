"""What the fast path counts: requests that it answers itself, and what it stores ahead in the page cache.

Counters since the mount began, unless said otherwise. A mount without the fast path has them all at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoredAhead:
    """What was put into the page cache before anybody asked for it, and what became of it."""

    files: int = 0
    bytes: int = 0
    chunks: int = 0
    """Chunks whose files were stored, sentinels apart."""
    skipped_unknown_inodes: int = 0
    """Files not stored since the kernel had not looked them up, or had forgotten them."""
    failed: int = 0
    """Files that the kernel refused to take for another reason."""
    budget_bytes: int = 0
    """Upper bound of `outstanding_bytes`; no counter."""
    outstanding_bytes: int = 0
    """Stored in chunks that are not consumed yet: what the budget bounds. As of now."""
    consumed_chunks: int = 0
    """Chunks whose sentinels have all been read."""
    read_without_request: int = 0
    """Files read from the page cache alone: an estimate, from the sentinels that were read. Not of those stored by a plan."""
    plan_files_stored: int = 0
    """Of `files`, those that were stored by a plan."""
    reads_of_stored: int = 0
    """READs of files that a plan had stored and whose turn was to come: the kernel lost them, or they were stored too late."""
    residue_bytes: int = 0
    """Copies of sentinels of chunks that a plan has stored. As of now."""


@dataclass(frozen=True, slots=True)
class FastPathStatistics:
    """The fast path of one mount. What it passes on to Python is counted there, not here."""

    active: bool = False
    reason: str | None = "this mount was made without it"
    """Why it is not active; None if it is."""
    threads: int = 0
    """Threads that answer requests, without the one that stores ahead. As of now."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests answered by it, by kind: `lookup`, `read`, … as the handlers in Python are named."""
    node_memory_hits: int = 0
    """READ requests answered by it, from chunks in memory."""
    bytes_read: int = 0
    """Bytes in its answers to READ requests."""
    stored_ahead: StoredAhead = field(default_factory=StoredAhead)
    listed_ahead: int = 0
    """Directories that were listed before a reader came to them."""

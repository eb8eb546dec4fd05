"""The statistics of an SSD tier in one process."""

from __future__ import annotations

from dataclasses import dataclass

from chunkstore.ssd.policy_statistics import PoliciesStatistics


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """The statistics of one process since it opened the tier, unless noted otherwise."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    """Misses while the tier is in service."""
    bypassed: int = 0
    """Reads while the tier is out of service."""
    written_bytes: int = 0
    not_admitted: int = 0
    """Chunks that the admission policy refused."""
    not_written: int = 0
    """Chunks for which the queue or the SSD had no room."""
    failures: int = 0
    """The number of times that the tier went out of service."""
    in_service: bool = False
    """True if the tier is in service now."""
    reason: str = ""
    """The reason for the last failure."""
    policy: PoliciesStatistics | None = None
    """What the cache policies have decided; None without one."""

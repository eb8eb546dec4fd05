"""The settings of a reader's allocation: what a mount is told before its server reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """The job whose share a process has, and where it asks for it. Picklable."""

    job: str
    """The job's name; empty for the partition of readers without one."""
    index_url: str

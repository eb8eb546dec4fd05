"""The settings of a reader's allocation: what a mount is told before its server reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """The job whose share a process has, and where it asks for it. Picklable."""

    job: str
    """The job's name; empty for the partition of readers without one."""
    index_url: str
    asks_unnamed: bool = True
    """True if a process without a job asks too; otherwise it takes what it gets."""

    @property
    def is_asked(self) -> bool:
        """True if the process has an allocation."""
        return bool(self.job) or self.asks_unnamed

    @property
    def member_job(self) -> str | None:
        """The job that a master takes to pay; None: nobody pays for this process."""
        return self.job if self.is_asked else None

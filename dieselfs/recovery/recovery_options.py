"""The options of a recovery."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dieselfs.recovery.points_in_time import PointInTime


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """The options of a recovery; by default the whole index is made equal to the store."""

    since: PointInTime | None = None
    """The point up to which the index is known to be complete.

    The commits after it are put again, and nothing before it is read.
    """
    until: PointInTime | None = None
    """The point at which the dataset is wanted.

    The result is an index held there or, without an index, a snapshot published in the store.
    """
    check: bool = False
    """True to compare, and change nothing."""
    dry_run: bool = False
    """True to report what would be done, and change nothing."""
    adopt: bool = False
    """True to commit the uncommitted chunks that are whole."""
    without_commits: bool = False
    """True to rebuild the log from the evidence in chunks if commits are lost."""
    without_chunks: bool = False
    """True to continue without the files of lost chunks."""
    dataset_id: bytes | None = None
    """The id of one of several datasets of that name, by default that of the birth commit."""
    snapshot_folder: Path | None = None
    """The folder of the snapshot, for `until` without an index."""
    spill_folder: Path | None = None
    """The folder for temporary files, by default that of the system."""

    @property
    def reads_only(self) -> bool:
        """True if nothing is to be changed."""
        return self.check or self.dry_run

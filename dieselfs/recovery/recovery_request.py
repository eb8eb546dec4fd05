"""What is asked of a recovery, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chunkstore.chunk_source import ChunkRef
from dieselfs.recovery.history import History
from dieselfs.recovery.log_rebuild import LogRebuild
from dieselfs.recovery.points_in_time import PointInTime
from metadata.rebuild.index_difference import IndexDifference
from metadata.records import DatasetState


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """What is wanted. As it is: the whole index, made equal to what the store says."""

    since: PointInTime | None = None
    """The index is known to be complete up to here: put the commits after it again, and read nothing before."""
    until: PointInTime | None = None
    """The dataset as it was then: an index held there, or, without an index, a snapshot published in the store."""
    check: bool = False
    """Compare, and change nothing."""
    dry_run: bool = False
    """Say what would be done, and change nothing."""
    adopt: bool = False
    """Commit the uncommitted chunks that are whole."""
    without_commits: bool = False
    """If commits are lost, make the log again from what chunks say."""
    without_chunks: bool = False
    """If chunks are lost, go on without the files in them."""
    dataset_id: bytes | None = None
    """Of which life of the name, if not of that of the birth."""
    snapshot_folder: Path | None = None
    """For `until` without an index."""
    spill_folder: Path | None = None
    """For temporary files, if not among those of the system."""


class RecoveryProgress(Protocol):
    """As the command line's progress. Any thread."""

    def advance(self, files: int, size_bytes: int) -> None: ...

    def expect(self, files: int, size_bytes: int) -> None: ...


class NoRecoveryProgress:
    """Progress that nobody looks at."""

    def advance(self, files: int, size_bytes: int) -> None:
        pass

    def expect(self, files: int, size_bytes: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was read, found and done."""

    history: History
    """As it is at the end."""
    state: DatasetState | None = None
    """Of the index or snapshot that was made or compared with; None if nothing came to that."""
    was_empty: bool = False
    """The index held nothing of the dataset."""
    changed: int = 0
    """Records put, because they were missing, different or damaged; of an index that was empty, all that describe files and directories."""
    removed: int = 0
    """Records of which the store says nothing."""
    differences: Sequence[IndexDifference] = ()
    """Without changes: how the index differs, the first 10,000."""
    difference_count: int = 0
    log: LogRebuild | None = None
    """How lost commits were made again, or would be."""
    moved_aside: int = 0
    """Damaged commits that now lie at `commits/<generation>.damaged`."""
    adopted: Sequence[ChunkRef] = ()
    """Committed now, or would be."""
    lost_chunks: Sequence[ChunkRef] = ()
    """Gone on without."""
    snapshot_id: str | None = None
    """Published in the store."""
    snapshot: Path | None = None
    """Its local file."""

    @property
    def repaired(self) -> bool:
        """Something was wrong and has been put right."""
        return bool(self.changed or self.removed or self.moved_aside or self.log or self.adopted)

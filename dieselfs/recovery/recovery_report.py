"""The report of a recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkstore.chunk_source import ChunkRef
from dieselfs.recovery.history import History
from dieselfs.recovery.log_rebuild import LogRebuild
from metadata.rebuild.index_difference import IndexDifference
from metadata.records import DatasetState


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The facts that were read and found, and the actions that were taken."""

    history: History
    """The history at the end."""
    state: DatasetState | None = None
    """The state of the index or snapshot that was made or compared with.

    It is None if none was made or compared.
    """
    was_empty: bool = False
    """True if the index had nothing of the dataset."""
    changed: int = 0
    """The records put because they were missing, different or damaged.

    For an index that was empty they are all records of files and directories.
    """
    removed: int = 0
    """The records removed because nothing in the store calls for them."""
    differences: Sequence[IndexDifference] = ()
    """The first 10,000 differences of the index, when nothing is changed."""
    difference_count: int = 0
    log: LogRebuild | None = None
    """The rebuild of lost commits, done or planned."""
    moved_aside: int = 0
    """The damaged commits that now lie at `commits/<generation>.damaged`."""
    adopted: Sequence[ChunkRef] = ()
    """The chunks that are committed now, or would be."""
    lost_chunks: Sequence[ChunkRef] = ()
    """The lost chunks that the recovery continued without."""
    snapshot_id: str | None = None
    """The id of the snapshot published in the store."""
    snapshot: Path | None = None
    """The snapshot's local file."""

    @property
    def repaired(self) -> bool:
        """True if something was wrong and has been repaired."""
        return bool(self.changed or self.removed or self.moved_aside or self.log or self.adopted)

"""The findings of a check: one value for each fault.

A finding holds the meaning of the fault, the advice, and exactly the files that it hits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class FindingKind(Enum):
    """The kind of a fault. Scripts see the values."""

    COMMIT_MISSING = "commit-missing"
    COMMIT_DAMAGED = "commit-damaged"
    CHUNK_MISSING = "chunk-missing"
    CHUNK_LENGTH = "chunk-length"
    """The object is longer or shorter than its commit says."""
    CHUNK_HEAD = "chunk-head"
    """The preamble or the header is damaged."""
    CHUNK_FOREIGN = "chunk-foreign"
    """The object is a sound chunk, but another one, or one of another dataset."""
    CHUNK_PAYLOAD = "chunk-payload"
    """The content of files does not have their checksums."""
    INDEX_BEHIND = "index-behind"
    INDEX_AHEAD = "index-ahead"
    """The index has applied commits that the store does not hold."""
    INDEX_RECORD = "index-record"
    """Records are damaged, missing, wrong, or should not be there."""
    SNAPSHOT_DAMAGED = "snapshot-damaged"
    SNAPSHOT_FOREIGN = "snapshot-foreign"
    """The snapshot is of another dataset, or of a removed one of the same name."""
    SNAPSHOT_DANGLING = "snapshot-dangling"
    """The snapshot names missing chunks, which no commit requires any more."""
    TAG_DANGLING = "tag-dangling"


class Repair(Enum):
    """The action of `repair` for a finding; it loses nothing that is not lost already."""

    REPAIR_INDEX = "repair the index from the store"
    REPLACE_SNAPSHOT = "replace it with a new one"
    REPUBLISH_SNAPSHOT = "replace it with the intact copy on this machine"
    DELETE_SNAPSHOT = "delete it from the store"
    DELETE_LOCAL = "delete the file"

    @property
    def loses(self) -> bool:
        """True if the repair deletes something that nothing equal replaces."""
        return self is Repair.DELETE_SNAPSHOT


@dataclass(frozen=True, slots=True)
class SnapshotHit:
    """A kept snapshot that needs something damaged."""

    snapshot_id: str
    files: int
    """The number of its files that are hit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault."""

    kind: FindingKind
    object: str
    """The object's key, a local file's path, or the name of what the index record describes."""
    what: str
    """The fault and its meaning."""
    advice: str
    """The action to take."""
    damaged: bool
    """True if something is lost, or would be without an action.

    Otherwise the repair removes the fault without loss.
    """
    repair: Repair | None = None
    files: tuple[bytes, ...] = ()
    """The files of the present state that are hit, in order."""
    snapshots: tuple[SnapshotHit, ...] = ()
    """The kept snapshots that are hit."""


class Verdict(Enum):
    """The result of a check."""

    CLEAN = "clean"
    REPAIRABLE = "repairable"
    """There are only differences that the repair removes without loss."""
    REPAIRED = "repaired"
    DAMAGED = "damaged"


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return the result for these findings, before any repair."""
    damaged = [finding.damaged for finding in findings]
    if any(damaged):
        return Verdict.DAMAGED
    return Verdict.REPAIRABLE if damaged else Verdict.CLEAN

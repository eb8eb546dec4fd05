"""What a check found wrong: one value for each thing, with what it means, what to do about it, and exactly the files that it hits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What is wrong. The values are what scripts see."""

    COMMIT_MISSING = "commit-missing"
    COMMIT_DAMAGED = "commit-damaged"
    CHUNK_MISSING = "chunk-missing"
    CHUNK_LENGTH = "chunk-length"
    """The object is longer or shorter than its commit says."""
    CHUNK_HEAD = "chunk-head"
    """Preamble or header is damaged."""
    CHUNK_FOREIGN = "chunk-foreign"
    """A sound chunk, but another one, or one of another dataset."""
    CHUNK_PAYLOAD = "chunk-payload"
    """The content of files does not have their checksums."""
    INDEX_BEHIND = "index-behind"
    INDEX_AHEAD = "index-ahead"
    """The index has applied commits that the store does not hold."""
    INDEX_RECORD = "index-record"
    """Records are damaged, missing, wrong, or should not be there."""
    SNAPSHOT_DAMAGED = "snapshot-damaged"
    SNAPSHOT_FOREIGN = "snapshot-foreign"
    """Of another dataset, or of a former life of the name."""
    SNAPSHOT_DANGLING = "snapshot-dangling"
    """It names chunks that are gone, and that no commit promises any more."""
    TAG_DANGLING = "tag-dangling"


class Repair(Enum):
    """What `repair` does about a finding, without loss of anything that is not lost already."""

    REPAIR_INDEX = "mend the index from the store"
    REPLACE_SNAPSHOT = "replace it by a fresh one"
    REPUBLISH_SNAPSHOT = "replace it by this machine's sound copy"
    DELETE_SNAPSHOT = "delete it from the store"
    DELETE_LOCAL = "delete the file"

    @property
    def loses(self) -> bool:
        """What the repair deletes has no equal that takes its place."""
        return self is Repair.DELETE_SNAPSHOT


@dataclass(frozen=True, slots=True)
class SnapshotHit:
    """A kept snapshot that needs something damaged."""

    snapshot_id: str
    files: int
    """Of its files, how many are hit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: Kind
    object: str
    """The object's key, a local file's path, or what the record of the index is of."""
    what: str
    """What is wrong, and what that means."""
    advice: str
    """What to do."""
    damaged: bool
    """Something is lost, or would be if nothing is done; else the repair puts it right without loss."""
    repair: Repair | None = None
    files: tuple[bytes, ...] = ()
    """The files of the present state that are hit, in order."""
    snapshots: tuple[SnapshotHit, ...] = ()
    """Kept snapshots that are hit."""


class Verdict(Enum):
    """What a check comes to."""

    CLEAN = "clean"
    REPAIRABLE = "repairable"
    """Only differences that the repair puts right without loss."""
    REPAIRED = "repaired"
    DAMAGED = "damaged"


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """What these findings come to, before any repair."""
    damaged = [finding.damaged for finding in findings]
    if any(damaged):
        return Verdict.DAMAGED
    return Verdict.REPAIRABLE if damaged else Verdict.CLEAN

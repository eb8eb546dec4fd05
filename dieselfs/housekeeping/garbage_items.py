"""Garbage items: objects and local files that nothing needs, or only until a grace period ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dieselfs.housekeeping.retention import RetiredChunk

YOUNG: Final = "younger than the grace period"
PINNED: Final = "a snapshot, a tag or a mount needs it"


class GarbageKind(StrEnum):
    """The kind of a garbage item."""

    UNCOMMITTED = "uncommitted chunk"
    RETIRED = "retired chunk"
    LEASE = "lease"
    SUPERSEDED = "superseded number"
    FORMER_SNAPSHOT = "snapshot of a former life"
    DANGLING_SNAPSHOT = "snapshot without its chunks"
    TEMPORARY = "temporary file"
    LOCAL_FILE = "local file"


@dataclass(frozen=True, slots=True)
class GarbageItem:
    """A garbage item: its kind, its place, and the reason."""

    kind: GarbageKind
    key: str
    """The key of the object, the name of a temporary file, or the path of a local file."""
    size_bytes: int
    reason: str
    kept: str = ""
    """The reason why it stays for now; empty if it may be deleted."""
    chunk: RetiredChunk | None = None
    """The retired chunk, which is checked again before it is deleted."""

"""Waste: one object, or one local file, that nothing needs, or will not need once its grace period is over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dieselfs.retention import RetiredChunk

YOUNG: Final = "younger than the grace period"
PINNED: Final = "a snapshot, a tag or a mount needs it"


class GarbageKind(StrEnum):
    """What the waste was."""

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
    """What it is, where, and why."""

    kind: GarbageKind
    key: str
    """Of the object; of a temporary file its name, of a local file its path."""
    size_bytes: int
    reason: str
    kept: str = ""
    """Why it stays for now; empty: it may go."""
    chunk: RetiredChunk | None = None
    """Of a retired chunk: what is asked once more before it is deleted."""

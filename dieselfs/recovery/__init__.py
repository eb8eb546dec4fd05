"""An index made again, verified, or made for an earlier time, from the object store alone (docs/recovery.md)."""

from dieselfs.recovery.history import (
    DamagedCommit,
    History,
    UncommittedChunk,
    generation_before,
    read_history,
)

__all__ = [
    "DamagedCommit",
    "History",
    "UncommittedChunk",
    "generation_before",
    "read_history",
]

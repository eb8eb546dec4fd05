"""Recovery of an index from the object store alone: rebuilt, verified, or of an earlier time.

See docs/recovery.md.
"""

from dieselfs.recovery.history import (
    DamagedCommit,
    History,
    UncommittedChunk,
    generation_before,
    read_history,
)
from dieselfs.recovery.points_in_time import AtTime, PointInTime, parse_point
from dieselfs.recovery.recovery import recover
from dieselfs.recovery.recovery_options import RecoveryOptions
from dieselfs.recovery.recovery_report import RecoveryReport

__all__ = [
    "AtTime",
    "DamagedCommit",
    "History",
    "PointInTime",
    "RecoveryOptions",
    "RecoveryReport",
    "UncommittedChunk",
    "generation_before",
    "parse_point",
    "read_history",
    "recover",
]

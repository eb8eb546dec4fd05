"""The checks of a dataset.

`fsck` compares store, index and snapshots; `scrub` reads every byte.
"""

from dieselfs.checking.findings import Finding, FindingKind, Repair, SnapshotHit, Verdict
from dieselfs.checking.fsck import FsckReport, fsck
from dieselfs.checking.repairing import repair
from dieselfs.checking.scrub import ChunkSample, ScrubReport, scrub

__all__ = [
    "Finding",
    "FsckReport",
    "FindingKind",
    "Repair",
    "ChunkSample",
    "ScrubReport",
    "SnapshotHit",
    "Verdict",
    "fsck",
    "repair",
    "scrub",
]

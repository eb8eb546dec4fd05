"""The SSD tier as it is configured: a folder on a local SSD, and how it is kept (docs/decisions/0013-ssd-tier.md)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import Admission, AdmitAll, RejectFirst
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.segment_index import Order
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import TieredStore
from chunkstore.stores.object_store import ObjectReader, ObjectStore
from dieselfs.errors import ConfigError
from dieselfs.node_memory.task_folder import VARIABLE

AdmissionName: TypeAlias = Literal["all", "reject-first"]

_SHARE_OF_FREE: Final = 0.8
"""Of the file system, for a tier that nobody has given a size."""


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """Pickles."""

    folder: Path
    budget_bytes: int | None = None
    """None: what was said when the folder was last opened with a size, or else a share of what is free."""
    admission: AdmissionName = "all"
    eviction: Order = "lru"
    segment_bytes: int = DEFAULT_SEGMENT_BYTES

    def open_segments(self) -> SegmentStore:
        """Blocks; `OSError`, `lmdb.Error`, `ValueError` if it can't be had."""
        budget_bytes = self.budget_bytes
        if budget_bytes is None and not (self.folder / "budget").exists():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = os.statvfs(self.folder)
            budget_bytes = int(free.f_bavail * free.f_frsize * _SHARE_OF_FREE)
        return SegmentStore(
            self.folder,
            index_folder(self.folder),
            budget_bytes,
            segment_bytes=self.segment_bytes,
            order=self.eviction,
            limits_of=LimitsFolder(self.folder).of,
        )

    def open(self) -> SsdTier:
        """A tier that opens itself in the background. `ConfigError` if the folder is none that could be one."""
        if not self.folder.is_absolute():
            raise ConfigError(f"{self.folder}: the folder of an SSD tier is an absolute path")
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is no folder", "name one on a local SSD")
        admission: Admission = RejectFirst() if self.admission == "reject-first" else AdmitAll()
        return SsdTier(self.open_segments, self.folder, admission)


def index_folder(folder: Path) -> Path:
    """Where the index of a tier lies: in shared memory, not among the folders of tasks, which are swept."""
    base = Path(os.environ.get(VARIABLE) or "/dev/shm").absolute()
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    return base / f"dieselfs-ssd-{os.geteuid()}" / name


def with_tier(store: ObjectStore, dataset: DatasetRef, tier: SsdTier | None) -> ObjectReader:
    """What chunk readers read from: the store behind the tier, if there is one."""
    return store if tier is None else TieredStore(store, dataset, tier)

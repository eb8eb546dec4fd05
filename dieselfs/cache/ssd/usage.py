"""The contents of an SSD tier by dataset, and the limits of each dataset: to show and to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

import chunkstore.errors
from chunkstore.call_threads import CallThreads
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId, print_id
from chunkstore.commit_log import find_dataset
from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.limits_folder import LimitsFolder, NamedLimits
from chunkstore.ssd.policy_choice import PolicyChoice, PolicyFile
from chunkstore.ssd.policy_counts import DecidedRow, PolicyCounts
from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.segment_index import CachedChunk
from chunkstore.ssd.segment_store import Occupancy, SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.node.task_folder import default_task, memory_root
from dieselfs.cache.ssd.settings import SsdSettings, open_tier, unavailable
from dieselfs.cache.ssd.warmup_notes import RUNS, WarmUpNote, claim_name, read_notes
from dieselfs.errors import SsdUnavailable, UsageError
from metadata.errors import DatasetNotFound

T = TypeVar("T")
_LOOK_S: Final = 10.0
Share: TypeAlias = Literal["all", "part", "none"]


@dataclass(frozen=True, slots=True)
class DatasetUsage:
    """The usage of a tier by one dataset."""

    id: bytes
    name: str
    """The name; empty if it is not known here."""
    bytes: int
    """Bytes of the SSD, in whole regions."""
    last_used: float | None
    """Seconds since 1970; None if it was not used since the index was created."""
    hits: int
    """Reads of chunks, or of parts of them, that hit.

    They are those of all processes of the node since the index was created. Reads of the last
    second may be missing.
    """
    hit_bytes: int
    misses: int
    limits: DatasetLimits

    @property
    def hit_rate(self) -> float | None:
        """The part of reads that hit; None if nothing was read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


@dataclass(frozen=True, slots=True)
class TierUsage:
    """The usage of a tier."""

    budget_bytes: int
    used_bytes: int
    """Bytes of regions that are not empty."""
    region_bytes: int
    datasets: tuple[DatasetUsage, ...]
    """The datasets, the largest first."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A change of a tier's size."""

    former_bytes: int
    budget_bytes: int
    evicted: Mapping[str, int]
    """The name of each dataset that lost chunks -> the bytes of the SSD that they took."""


class TierAccess:
    """Access to a tier for commands: no answer in time is an error."""

    def __init__(self, settings: SsdSettings) -> None:
        """Open the tier; raise `SsdUnavailable`."""
        self._settings = settings
        self._tier: SsdTier = open_tier(settings)
        self._limits = LimitsFolder(settings.folder)
        self._threads = CallThreads("ssd-look", 4)

    def usage(self) -> TierUsage:
        """Return the usage of the tier.

        The datasets are those that have bytes, reads or limits there.
        """
        segments = self._segments()
        occupied = {of.dataset: of for of in self._call(segments.occupancy)}
        named = self._call(self._limits.read)
        known = [_usage(id_, occupied.get(id_), named.get(id_)) for id_ in {*occupied, *named}]
        shown = [
            of
            for of in known
            if of.bytes or of.hit_rate is not None or of.limits != DatasetLimits()
        ]
        return TierUsage(
            self._call(lambda: segments.budget_bytes),
            sum(of.bytes for of in shown),
            segments.region_bytes,
            tuple(sorted(shown, key=lambda of: (-of.bytes, of.name, of.id))),
        )

    def warmups(self) -> Mapping[bytes, WarmUpNote]:
        """Return the progress of warm-ups beside readers, by the ids of their datasets.

        The state of one whose process was killed is *interrupted*.
        """
        segments = self._segments()
        notes = self._call(lambda: read_notes(self._settings.folder))

        def is_held(name: bytes) -> bool:
            if not segments.claim(name):
                return True
            segments.disclaim(name)
            return False

        for id_, note in notes.items():
            name = claim_name(id_)
            if note.progress.state == RUNS and not self._call(partial(is_held, name)):
                notes[id_] = replace(note, progress=replace(note.progress, state="interrupted"))
        return notes

    def ids_of(self, name: str, store: ObjectStore) -> list[bytes]:
        """Return the id of the dataset of this name in the store, and of cached ones of the name.

        Raises `DatasetNotFound` if there is none.
        """
        found = [id_ for id_, named in self._call(self._limits.read).items() if named.name == name]
        try:
            present = find_dataset(store, name)
        except chunkstore.errors.ChunkStoreError:
            if not found:
                raise
            present = None
        if present is not None and present.id not in found:
            found.append(present.id)
        if not found:
            raise DatasetNotFound(
                f"dataset {name!r} does not exist and is not on the SSD: `dlcmd cache ls` lists "
                "the datasets on the SSD"
            )
        return found

    def change(
        self, name: str, store: ObjectStore, changed: Callable[[DatasetLimits], DatasetLimits]
    ) -> DatasetLimits:
        """Change the limits of a dataset; return the new ones. Running mounts obey within seconds.

        Raises `UsageError`, `OSError` and `DatasetNotFound`.
        """
        limits = DatasetLimits()
        known = self._call(self._limits.read)
        for id_ in self.ids_of(name, store):
            former = known.get(id_, NamedLimits(name, DatasetLimits())).limits
            limits = changed(former)
            self._check_quota(limits)
            self._call(partial(self._limits.write, id_, NamedLimits(name, limits)))
        self._call(self._segments().tend)
        return limits

    def resize(self, budget_bytes: int) -> Resized:
        """Change the tier's size for all that use it; evict at once what has no room any more.

        Regions that a process is filling are evicted within seconds. Raises `UsageError` if the
        size is too small.
        """
        segments, before = self._segments(), self.usage()
        settings = self._settings
        try:
            self._call(partial(RegionFiles, settings.folder, budget_bytes, settings.segment_bytes))
        except ValueError as error:
            raise UsageError(str(error), "give it more, or remove the folder") from error
        self._call(segments.tend)
        left = {of.id: of.bytes for of in self.usage().datasets}
        evicted = {
            of.name or print_id(of.id): of.bytes - left.get(of.id, 0) for of in before.datasets
        }
        return Resized(
            before.budget_bytes, budget_bytes, {k: lost for k, lost in evicted.items() if lost > 0}
        )

    def decisions(self) -> Mapping[DecidedRow, PolicyCounts]:
        """Return what the cache policies of all processes have decided.

        They count since the index was created, as the hits of `usage`.
        """
        segments = self._segments()
        return self._call(segments.decisions)

    def policy(self) -> PolicyChoice | None:
        """Return the cache policies that the folder names; None: each process has its own."""
        return self._call(PolicyFile(self._settings.folder).read)

    def set_policy(self, choice: PolicyChoice | None) -> None:
        """Set the cache policies for all that use the tier; None leaves each process its own.

        Running mounts and cache nodes obey within seconds. Raises `OSError`.
        """
        self._call(lambda: PolicyFile(self._settings.folder).write(choice))

    def evict(self, name: str, store: ObjectStore) -> int:
        """Evict a dataset; return how many bytes of the SSD are free now."""
        segments = self._segments()
        return sum(self._call(partial(segments.evict, id_)) for id_ in self.ids_of(name, store))

    def cached(self, dataset: bytes) -> dict[bytes, CachedChunk]:
        """Return how much of each chunk of a dataset is cached."""
        segments = self._segments()
        return self._call(lambda: segments.cached(dataset))

    def _check_quota(self, limits: DatasetLimits) -> None:
        region_bytes = self._segments().region_bytes
        if limits.quota_bytes is not None and limits.quota_bytes < region_bytes:
            raise UsageError(
                f"a quota of {limits.quota_bytes} bytes is smaller than a region of this tier",
                f"give at least {region_bytes} (the SSD is divided into regions of this size), or "
                "none",
            )

    def _segments(self) -> SegmentStore:
        segments = self._tier.segments
        if segments is None:
            raise unavailable(self._settings, self._tier)
        return segments

    def _call(self, access: Callable[[], T]) -> T:
        try:
            return self._threads.run(access, _LOOK_S)
        except TimeoutError:
            raise SsdUnavailable(
                f"the SSD tier {self._settings.folder} did not answer within {_LOOK_S:.0f} s"
            ) from None


def chunks_in_memory(dataset: DatasetRef) -> set[bytes]:
    """Return the chunks of which a part is in node memory, in the task named after the dataset."""
    try:
        names = os.listdir(memory_root() / default_task(dataset) / "chunks")
    except OSError:
        return set()
    found = set()
    for name in names:
        with suppress(ValueError):  # not complete yet
            found.add(ChunkId.parse(name.partition(".")[0]).value)
    return found


def share_of(chunk: bytes, cached: Mapping[bytes, CachedChunk]) -> Share:
    """Return how much of a chunk is cached."""
    found = cached.get(chunk)
    return "none" if found is None else "all" if found.is_whole else "part"


def _usage(id_: bytes, of: Occupancy | None, named: NamedLimits | None) -> DatasetUsage:
    of = of or Occupancy(id_, 0, 0, 0.0)
    named = named or NamedLimits("", DatasetLimits())
    counts = of.hits, of.hit_bytes, of.misses
    return DatasetUsage(id_, named.name, of.bytes, of.last_used or None, *counts, named.limits)

"""Warm-up of an SSD tier with the chunks of a dataset, each read from the store once.

Any number of processes may warm the same dataset at once. A block (a chunk, or 4 MiB of a large
one) is claimed while it is fetched. Blocks that others have claimed are checked again at the end:
either they are cached then, or the claimant has ended, and they are fetched here. A chunk that is
lost or damaged in the store is left out.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt, NotFound
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.segment_index import CachedChunk
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import Loaded, ObjectBlock, TieredStore, blocks_of
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.ssd.settings import OPENS_S, SsdSettings, open_tier, unavailable
from dieselfs.cache.warmup.warm_up import Outcome, WarmUp
from dieselfs.errors import SsdUnavailable

log = logging.getLogger(__name__)

JOBS: Final = 16
_BACK_IN_SERVICE_S: Final = 10.0
"""The wait for an SSD that is out of service, before the warm-up fails."""
_FILLED: Final = 0.97
"""The usable part of regions: the space at their ends is lost."""
_PAGE_BYTES: Final = 4096
LoadBlock = Callable[[ChunkRef, ObjectBlock], Loaded]
"""A function that loads a block onto the SSD. It raises what the store raises."""


@dataclass(frozen=True, slots=True)
class Warmth:
    """The cached part of the wanted chunks."""

    chunks: int
    bytes: int
    cached_chunks: int
    """Chunks that are cached completely."""
    cached_bytes: int

    @property
    def is_all(self) -> bool:
        """True if all chunks are cached completely."""
        return self.cached_chunks == self.chunks


def warmth(tier: SsdTier, dataset: DatasetRef, chunks: Sequence[ChunkRef]) -> Warmth:
    """Return how much of the chunks is cached. Costs about 2 µs a cached segment.

    Raises `SsdUnavailable`.
    """
    cached = _cached(tier, dataset)
    none = CachedChunk(0, is_whole=False)
    found = [cached.get(chunk.id.value, none) for chunk in chunks]
    sizes = [chunk.object_bytes for chunk in chunks]
    return Warmth(
        len(chunks),
        sum(sizes),
        sum(chunk.is_whole for chunk in found),
        sum(min(chunk.bytes, size) for chunk, size in zip(found, sizes, strict=True)),
    )


class SsdTarget:
    """An SSD tier as the `WarmUpTarget` of one dataset."""

    def __init__(
        self,
        tier: SsdTier,
        settings: SsdSettings,
        dataset: DatasetRef,
        load: LoadBlock,
        *,
        keeps_others: bool = False,
    ) -> None:
        """Register the dataset; raise `SsdUnavailable`. `load` fills the tier.

        With `keeps_others` only room counts that no other dataset uses.
        """
        self.jobs = JOBS
        self._tier, self._settings, self._dataset = tier, settings, dataset
        self._load_block, self._keeps_others = load, keeps_others
        names = LimitsFolder(settings.folder)
        tier.call(lambda: names.name(dataset.id, dataset.name), 0)
        self._found = _cached(tier, dataset)
        self._in_service_at = time.monotonic()

    def cached(self, chunks: Sequence[ChunkRef]) -> Container[bytes]:
        """See `WarmUpTarget`."""
        return {id_ for id_, chunk in self._found.items() if chunk.is_whole}

    def size(self, chunk: ChunkRef) -> int:
        """See `WarmUpTarget`."""
        return chunk.object_bytes

    def fitting(self, missing: Sequence[ChunkRef]) -> tuple[int, str]:
        """See `WarmUpTarget`. More chunks would only evict those loaded just before."""
        segments = self._tier.segments
        if segments is None:
            raise unavailable(self._settings, self._tier)
        found = self._tier.call(lambda: self._capacity(segments), 0, OPENS_S)
        if found is None:
            raise unavailable(self._settings, self._tier)
        room, limit = found
        room -= sum(chunk.bytes for chunk in self._found.values())
        for count, chunk in enumerate(missing):
            room -= chunk.object_bytes + _PAGE_BYTES
            if room < 0:
                return count, limit
        return len(missing), limit

    def units(self, chunk: ChunkRef) -> Sequence[tuple[tuple[ChunkRef, ObjectBlock], int]]:
        """See `WarmUpTarget`."""
        blocks = blocks_of(chunk.id, chunk.object_bytes)
        return [((chunk, block), block.length) for block in blocks]

    def load(self, unit: tuple[ChunkRef, ObjectBlock]) -> Outcome | None:
        """See `WarmUpTarget`."""
        try:
            result = self._load_block(*unit)
        except (NotFound, Corrupt) as error:
            log.warning("cannot load chunk %s: %s: %s", unit[0].id, type(error).__name__, error)
            return "lost"
        if result != "out of service":
            self._in_service_at = time.monotonic()
            return result
        if time.monotonic() - self._in_service_at > _BACK_IN_SERVICE_S:
            raise unavailable(self._settings, self._tier)
        return None

    def _capacity(self, segments: SegmentStore) -> tuple[int, str]:
        return capacity_bytes(
            segments, self._settings, self._dataset, keeps_others=self._keeps_others
        )


def ssd_warm_up(
    store: ObjectStore, dataset: DatasetRef, settings: SsdSettings, chunks: Sequence[ChunkRef]
) -> WarmUp:
    """Return the warm-up of this node's SSD from a store. Raises `SsdUnavailable`."""
    tier = open_tier(settings)
    tiered = TieredStore(store, dataset, tier)
    return WarmUp(SsdTarget(tier, settings, dataset, lambda _, block: tiered.load(block)), chunks)


def capacity_bytes(
    segments: SegmentStore,
    settings: SsdSettings,
    dataset: DatasetRef,
    *,
    keeps_others: bool = False,
) -> tuple[int, str]:
    """Return how many bytes of a dataset a tier holds at most, and the limit that bounds them.

    Other datasets make room, unless they are pinned or `keeps_others` is given.
    """
    limits, occupied = LimitsFolder(settings.folder), segments.occupancy()
    kept = sum(
        of.regions
        for of in occupied
        if of.dataset != dataset.id and (keeps_others or limits.of(of.dataset).pinned)
    )
    disk = os.statvfs(settings.folder)
    there = sum(of.regions for of in occupied)
    more = disk.f_bavail * disk.f_frsize // segments.region_bytes
    full = "the SSD tier is full: raise --ssd-size, or see in `dlcmd cache ls` what "
    bounds: list[tuple[int, str]] = [
        (
            segments.budget_regions - kept,
            full + ("other datasets use" if keeps_others else "is pinned"),
        ),
        (there + more - kept, "the disk is full: free space on it"),
    ]
    quota_bytes = limits.of(dataset.id).quota_bytes
    if quota_bytes is not None:
        raise_it = f"its quota is full: raise it with `dlcmd cache quota {dataset.name} SIZE`"
        bounds.append((quota_bytes // segments.region_bytes, raise_it))
    regions, limit = min(bounds, key=lambda of: of[0])
    return int(regions * segments.region_data_bytes * _FILLED), limit


def _cached(tier: SsdTier, dataset: DatasetRef) -> dict[bytes, CachedChunk]:
    segments = tier.segments
    cached = (
        None if segments is None else tier.call(lambda: segments.cached(dataset.id), 0, OPENS_S)
    )
    if cached is None:
        raise SsdUnavailable(
            f"the SSD tier is out of service: {tier.statistics().reason or 'it is not open'}"
        )
    return cached

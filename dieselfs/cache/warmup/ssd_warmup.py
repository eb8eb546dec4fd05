"""Warm-up of a node's SSD with the chunks of a dataset, each read from the store once.

Any number of processes may warm the same dataset at once. A block (a chunk, or 4 MiB of a large
one) is claimed while it is fetched. Blocks that others have claimed are checked again at the end:
either they are cached then, or the claimant has ended, and they are fetched here. Cached blocks are
not fetched, so a call resumes where another one was stopped. A chunk that is lost or damaged in the
store is left out.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import Advance
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.segment_index import CachedChunk
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import ObjectBlock, TieredStore, blocks_of
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.ssd.settings import OPENS_S, SsdSettings, open_tier, unavailable
from dieselfs.cache.warmup.load_loop import PAUSE_S, LoadLoop
from dieselfs.errors import SsdUnavailable
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

JOBS: Final = 16
_BACK_IN_SERVICE_S: Final = 10.0
"""The wait for an SSD that is out of service, before the warm-up fails."""
_FILLED: Final = 0.97
"""The usable part of regions: the space at their ends is lost."""
_PAGE_BYTES: Final = 4096

Turn = Callable[[], AbstractContextManager[object]]
"""The context around each block: entering it may wait."""
Outcome: TypeAlias = Literal["cached", "elsewhere", "loaded", "no room", "failed"]
_WORSE: Final[tuple[Outcome, ...]] = ("cached", "elsewhere", "loaded", "no room", "failed")
"""The outcome of a chunk is the last of the outcomes of its blocks in this order."""
Bound: TypeAlias = Literal["quota", "size", "disk"]
"""The limit of a dataset's room.

It is its quota, the tier's size without what is pinned for others, or the free space of the disk.
"""


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


@dataclass(frozen=True, slots=True)
class WarmUpReport:
    """The result of a warm-up, in chunks."""

    loaded: int
    loaded_bytes: int
    cached_before: int
    by_others: int
    """Chunks that other processes, or other threads of this one, have loaded meanwhile."""
    no_room: int
    """Chunks for which there is no room."""
    bound: Bound
    """The limit that would have to be larger for more room."""
    failed: int
    """Chunks that the store has lost or has damaged; the log names them."""
    seconds: float


def wanted_chunks(snapshot: Snapshot, since: Snapshot | None = None) -> list[ChunkRef]:
    """Return the chunks of a snapshot, without those of an older one."""
    known = set() if since is None else {id_.tobytes() for id_ in since.columns.chunk_id}
    chunks = [snapshot.chunk(number) for number in range(snapshot.chunk_count)]
    return [chunk for chunk in chunks if chunk.id.value not in known]


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


class WarmUp:
    """The warm-up of one dataset in this process. One thread uses it; `run` starts others."""

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        settings: SsdSettings,
        chunks: Sequence[ChunkRef],
    ) -> None:
        """Find out what is cached; raise `SsdUnavailable`."""
        self._settings, self._tier = settings, open_tier(settings)
        self._store = TieredStore(store, dataset, self._tier)
        self._dataset = dataset
        names = LimitsFolder(settings.folder)
        self._tier.call(lambda: names.name(dataset.id, dataset.name), 0)
        cached = _cached(self._tier, dataset)
        missing = [
            chunk
            for chunk in chunks
            if chunk.id.value not in cached or not cached[chunk.id.value].is_whole
        ]
        self.cached_before = len(chunks) - len(missing)
        fitting, self._bound = self._fitting(missing, cached)
        self._no_room = len(missing) - len(fitting)
        blocks = [blocks_of(chunk.id, chunk.object_bytes) for chunk in fitting]
        self._loop = LoadLoop(block for of_chunk in blocks for block in of_chunk)
        self._left = {of_chunk[0].chunk: len(of_chunk) for of_chunk in blocks}
        self._outcomes: dict[ChunkId, Outcome] = {}
        self._counts: Counter[Outcome] = Counter()
        self.loaded_bytes = 0
        """Bytes loaded so far."""
        self._counting = threading.Lock()

        self.missing = len(fitting)
        self.missing_bytes = sum(block.length for of_chunk in blocks for block in of_chunk)

    def run(self, advance: Advance, jobs: int = JOBS, turn: Turn = nullcontext) -> WarmUpReport:
        """Load the missing chunks, once.

        Raises `Unavailable`, other errors that end the warm-up, and `SsdUnavailable`; loaded blocks
        stay.
        """
        began = time.monotonic()
        self._loop.run(partial(self._load, advance, turn), jobs)
        return WarmUpReport(
            self._counts["loaded"],
            self.loaded_bytes,
            self.cached_before + self._counts["cached"],
            self._counts["elsewhere"],
            self._no_room + self._counts["no room"],
            self._bound,
            self._counts["failed"],
            time.monotonic() - began,
        )

    def stop(self) -> None:
        """Start no further block."""
        self._loop.stop()

    def _load(self, advance: Advance, turn: Turn, block: ObjectBlock, by_others: bool) -> bool:
        """Load a block; False while another process or thread loads it."""
        with turn():
            outcome = self._loaded(block)
        if outcome is None or outcome == "elsewhere":
            if by_others:
                time.sleep(PAUSE_S)
            return False
        if by_others and outcome == "cached":
            outcome = "elsewhere"
        with self._counting:
            former = self._outcomes.get(block.chunk, "cached")
            worse = self._outcomes[block.chunk] = max(former, outcome, key=_WORSE.index)
            self._left[block.chunk] -= 1
            is_done = not self._left[block.chunk]
            self._counts[worse] += is_done
            if outcome == "loaded":
                self.loaded_bytes += block.length
        advance(int(is_done), 0 if outcome in ("no room", "failed") else block.length)
        return True

    def _loaded(self, block: ObjectBlock) -> Outcome | None:
        """Load a block; None if the warm-up was stopped meanwhile."""
        deadline = time.monotonic() + _BACK_IN_SERVICE_S
        while not self._loop.is_stopped:
            try:
                result = self._store.load(block)
            except (NotFound, Corrupt) as error:
                kind = type(error).__name__
                log.warning("cannot load chunk %s: %s: %s", block.chunk, kind, error)
                return "failed"
            if result != "out of service":
                return result
            if time.monotonic() > deadline:
                raise unavailable(self._settings, self._tier)
            time.sleep(PAUSE_S)
        return None

    def _fitting(
        self, missing: Sequence[ChunkRef], cached: dict[bytes, CachedChunk]
    ) -> tuple[Sequence[ChunkRef], Bound]:
        """Return as many chunks as there is room for beside the cached ones, and the limit.

        More chunks would only evict those loaded just before.
        """
        segments = self._tier.segments
        if segments is None:
            raise unavailable(self._settings, self._tier)
        found = self._tier.call(
            lambda: capacity_bytes(segments, self._settings, self._dataset), 0, OPENS_S
        )
        if found is None:
            raise unavailable(self._settings, self._tier)
        room, bound = found
        room -= sum(chunk.bytes for chunk in cached.values())
        for count, chunk in enumerate(missing):
            room -= chunk.object_bytes + _PAGE_BYTES
            if room < 0:
                return missing[:count], bound
        return missing, bound


def capacity_bytes(
    segments: SegmentStore, settings: SsdSettings, dataset: DatasetRef
) -> tuple[int, Bound]:
    """Return how many bytes of a dataset a tier holds at most, and the limit that bounds them."""
    limits, occupied = LimitsFolder(settings.folder), segments.occupancy()
    pinned = sum(
        of.regions for of in occupied if of.dataset != dataset.id and limits.of(of.dataset).pinned
    )
    disk = os.statvfs(settings.folder)
    there = sum(of.regions for of in occupied)
    more = disk.f_bavail * disk.f_frsize // segments.region_bytes
    bounds: list[tuple[int, Bound]] = [
        (segments.budget_regions - pinned, "size"),
        (there + more - pinned, "disk"),
    ]
    quota_bytes = limits.of(dataset.id).quota_bytes
    if quota_bytes is not None:
        bounds.append((quota_bytes // segments.region_bytes, "quota"))
    regions, bound = min(bounds, key=lambda of: of[0])
    return int(regions * segments.region_data_bytes * _FILLED), bound


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

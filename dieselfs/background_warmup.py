"""The dataset that is read brought onto the SSD behind its readers: of a mount or a client, in a thread of its own.

Of all processes of a node that want one dataset warm, one is at it at a time (a claim, which the kernel frees when its process ends; the next one takes over).
Where the nodes read through a cache cluster, each chunk comes from its owner there. What is there is not fetched, so it goes on after a restart; what can't be
had now is tried again until it ends or is told to.

Readers go first. While nobody on the node misses, 4 pieces come at once. While somebody does, one at a time, and after each the store is left alone for 9 times
as long as it took: on a store that serves one request at a time, one disk arm, readers lose a tenth. That they miss is known from the tier's own counters, which
all processes of the node keep, at most some 2 s late.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import ChunkStoreError
from chunkstore.ssd.tier import SsdTier, TierStatistics
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cachenodes.ring_settings import CacheClusterSettings
from dieselfs.cachenodes.ring_store import CacheClusterStore
from dieselfs.errors import SsdUnavailable
from dieselfs.ssd_tier import SsdSettings, shared_tier
from dieselfs.ssd_warmup import Turn, WarmUp, large_files, open_tier, wanted_chunks, warmth
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

JOBS: Final = 4
_REST: Final = 9
"""Times as long as a piece took."""
_MAX_REST_S: Final = 10.0
_LOOK_S: Final = 1.0
"""Between looks at the counters: as often as processes tell theirs."""
_QUIET_S: Final = 3.0
"""Without a miss, until nobody is taken to read the store."""
_AGAIN_S: Final = 2.0
"""After what may pass: a store or an SSD that does not answer, another process that is at it."""
CLOSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class WarmUpProgress:
    """Of the snapshot that is shown, as of now."""

    state: str = "begins"
    """begins, runs, done, no room, stopped; or `waits: ` and for what."""
    chunks: int = 0
    bytes: int = 0
    cached_chunks: int = 0
    cached_bytes: int = 0
    """On the SSD, whoever has brought them; a piece that is there counts."""
    loaded_bytes: int = 0
    """By this process, since it began."""
    failed: int = 0
    """Chunks that the store has no more, or damaged."""


@dataclass(frozen=True, slots=True)
class SsdTierStatistics(TierStatistics):
    """Of one process, with its warm-up."""

    warmup: WarmUpProgress | None = field(default=None)
    """None: not asked for."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    chunks: Sequence[ChunkRef]
    large_files: Mapping[ChunkId, FileExtent]


class BackgroundWarmUp:
    """Thread-safe. A forked child has none: its parent's goes on."""

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        settings: SsdSettings,
        cache_cluster: CacheClusterSettings | None = None,
    ) -> None:
        """Nothing happens before the first `load`."""
        self._store, self._dataset, self._settings, self._cache_cluster = (
            store,
            dataset,
            settings,
            cache_cluster,
        )
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._wanted: _Wanted | None = None
        self._work: WarmUp | None = None
        self._progress = WarmUpProgress()
        self._thread = threading.Thread(target=self._run, name="ssd-warm-up", daemon=True)

    def load(self, snapshot: Snapshot) -> None:
        """Its chunks, instead of those of an older snapshot. Returns at once; the snapshot may be closed."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._wanted = _Wanted(wanted_chunks(snapshot), large_files(snapshot))
            if self._work is not None:
                self._work.stop()
            if self._thread.ident is None and not self._stopping.is_set():
                self._thread.start()
            self._changed.notify_all()

    def progress(self) -> WarmUpProgress:
        return self._progress

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End at once; a piece that is being fetched is left to the end of the process if it takes longer."""
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        with self._changed:
            if self._work is not None:
                self._work.stop()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (wanted := self._next()) is not None:
            try:
                self._load_all(wanted)
            except Exception as error:  # readers do without
                log.exception("the dataset %s is not brought to the SSD", self._dataset.name)
                self._say(f"stopped: {error}")
        self._say("stopped")

    def _next(self) -> _Wanted | None:
        """What is wanted, once; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or self._wanted is not None)
            wanted, self._wanted = self._wanted, None
            return None if self._stopping.is_set() else wanted

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._wanted is not None

    def _load_all(self, wanted: _Wanted) -> None:
        while not self._is_over():
            try:
                if self._load_once(wanted):
                    return
                self._say("waits: another process of this node is at it")
            except (SsdUnavailable, ChunkStoreError) as error:
                log.info("the warm-up of %s waits: %s", self._dataset.name, error)
                self._say(f"waits: {error}")
            self._stopping.wait(_AGAIN_S)

    def _load_once(self, wanted: _Wanted) -> bool:
        """False while another process is at it."""
        tier, chunks = open_tier(self._settings), wanted.chunks
        found = warmth(tier, self._dataset, chunks)
        self._progress = replace(
            self._progress,
            chunks=found.chunks,
            bytes=found.bytes,
            cached_chunks=found.cached_chunks,
            cached_bytes=found.cached_bytes,
        )
        if found.is_all:
            self._say("done")
            return True
        cache_cluster = self._cache_cluster
        with _claimed(tier, b"warm-up of " + self._dataset.id) as is_ours:
            if not is_ours:
                return False
            if cache_cluster is None:
                self._load_missing(self._store, chunks, tier)
                return True
            through = CacheClusterStore(
                self._store, self._dataset, chunks, cache_cluster, wanted.large_files
            )
            try:
                self._load_missing(through, chunks, tier)
            finally:
                through.close()
            return True

    def _load_missing(self, store: ObjectStore, chunks: Sequence[ChunkRef], tier: SsdTier) -> None:
        work = WarmUp(store, self._dataset, self._settings, chunks)
        with self._changed:
            if self._is_over():
                return
            self._work = work
        self._say("runs")
        before = self._progress.loaded_bytes
        counting = threading.Lock()

        def advance(chunks: int, size_bytes: int) -> None:
            with counting:
                now = self._progress
                self._progress = replace(
                    now,
                    cached_chunks=now.cached_chunks + (chunks if size_bytes else 0),
                    cached_bytes=min(now.bytes, now.cached_bytes + size_bytes),
                    loaded_bytes=before + work.loaded_bytes,
                )

        try:
            report = work.run(advance, JOBS, behind_readers(tier, self._stopping))
        finally:
            with self._changed:
                self._work = None
        if self._is_over():
            return
        self._progress = replace(self._progress, failed=report.failed)
        self._say("no room" if report.no_room else "done")
        log.info(
            "%s: %d chunks brought to the SSD, %d have no room, %d could not be had",
            *(self._dataset.name, report.loaded, report.no_room, report.failed),
        )

    def _say(self, state: str) -> None:
        self._progress = replace(self._progress, state=state)


def ssd_tier_statistics(
    settings: SsdSettings | None, warmup: BackgroundWarmUp | None
) -> SsdTierStatistics | None:
    """For `stats.json`; None without a tier."""
    if settings is None:
        return None
    tier = shared_tier(settings).statistics()
    shown = {name: getattr(tier, name) for name in TierStatistics.__dataclass_fields__}
    return SsdTierStatistics(**shown, warmup=None if warmup is None else warmup.progress())


def behind_readers(
    tier: SsdTier, stopping: threading.Event, now: Callable[[], float] = time.monotonic
) -> Turn:
    """Turns that leave the store to readers while they miss."""
    return _Turns(tier, stopping, now).turn


class _Turns:
    def __init__(self, tier: SsdTier, stopping: threading.Event, now: Callable[[], float]) -> None:
        self._tier, self._stopping, self._now = tier, stopping, now
        self._alone, self._looking = threading.Lock(), threading.Lock()
        self._misses = self._missed()
        self._looked_at, self._changed_at = now(), float("-inf")

    @contextmanager
    def turn(self) -> Iterator[None]:
        if not self._readers_miss():
            yield
            return
        with self._alone:
            began = self._now()
            try:
                yield
            finally:
                self._stopping.wait(min(_REST * (self._now() - began), _MAX_REST_S))

    def _readers_miss(self) -> bool:
        with self._looking:
            now = self._now()
            if now - self._looked_at >= _LOOK_S:
                self._looked_at, misses = now, self._missed()
                if misses != self._misses:
                    self._misses, self._changed_at = misses, now
            return now - self._changed_at < _QUIET_S

    def _missed(self) -> int | None:
        """By all processes of the node, of all datasets."""
        segments = self._tier.segments
        if segments is None:
            return None
        return self._tier.call(lambda: sum(of.misses for of in segments.occupancy()), 0)


@contextmanager
def _claimed(tier: SsdTier, name: bytes) -> Iterator[bool]:
    """Whether no other process of the node has it; then it is ours as long."""
    segments = tier.segments
    if segments is None or not tier.call(lambda: segments.claim(name), 0):
        yield False
        return
    try:
        yield True
    finally:
        tier.call(lambda: segments.disclaim(name), 0)

"""Warm-up of an SSD beside its readers, in a background thread: of a mount, client or cache node.

One process of a node warms a dataset at a time. It holds a claim, which the kernel frees when the
process ends; then another process takes over. Cached chunks are not fetched, so a warm-up resumes
after a restart. A chunk that cannot be fetched now is tried again until the warm-up ends or is
stopped.

Readers go first. While no process on the node misses, 4 blocks are fetched at once. While one does,
a single block is fetched at a time, and then the store is left alone for 9 times as long as the
fetch took: on a store that serves one request at a time, one disk arm, readers lose a tenth. The
misses come from the tier's own counters, which all processes of the node update with a delay of at
most some 2 s.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import ChunkStoreError
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tier_statistics import TierStatistics
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.ssd.settings import SsdSettings, open_tier, shared_tier
from dieselfs.cache.ssd.warmup_notes import RUNS, WarmUpProgress, claim_name, write_note
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up, warmth
from dieselfs.cache.warmup.warm_up import Turn, WarmUp
from dieselfs.errors import SsdUnavailable

log = logging.getLogger(__name__)

JOBS: Final = 4
_REST: Final = 9
"""The rest after a block, as a multiple of the time that its fetch took."""
_MAX_REST_S: Final = 10.0
_LOOK_S: Final = 1.0
"""The time between two reads of the counters: processes update theirs as often."""
_QUIET_S: Final = 3.0
"""The time without a miss after which no process is taken to read the store."""
_AGAIN_S: Final = 2.0
"""The time to wait after a condition that may pass.

Such conditions are a store or an SSD that does not answer, and another process that warms the
dataset.
"""
_ANOTHER_LOADS: Final = "waits: another process of this node loads the dataset"
_NOTE_S: Final = 1.0
"""The time between two notes of the progress."""
CLOSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class SsdTierStatistics(TierStatistics):
    """SSD statistics of one process, with its warm-up."""

    warmup: WarmUpProgress | None = field(default=None)
    """None: no warm-up is configured."""


class FilledTier(Protocol):
    """An SSD tier of this process, and how a warm-up behind its readers loads a dataset."""

    folder: Path
    """The tier's folder, in which the progress is noted."""

    def open(self) -> SsdTier:
        """Return the tier, in service; raise `SsdUnavailable`."""
        ...

    def work(self, tier: SsdTier, chunks: Sequence[ChunkRef]) -> WarmUp:
        """Return a warm-up with these chunks; raise `SsdUnavailable`."""
        ...

    def turns(self, tier: SsdTier, stopping: threading.Event) -> Turn:
        """Return turns that leave the store to readers; `stopping` ends their waits."""
        ...


class OwnTier:
    """The SSD tier of a mount or client: a `FilledTier`."""

    def __init__(self, store: ObjectStore, dataset: DatasetRef, settings: SsdSettings) -> None:
        """`store` fills the SSD."""
        self.folder = settings.folder
        self._store, self._dataset, self._settings = store, dataset, settings

    def open(self) -> SsdTier:
        """See `FilledTier`."""
        return open_tier(self._settings)

    def work(self, tier: SsdTier, chunks: Sequence[ChunkRef]) -> WarmUp:
        """See `FilledTier`."""
        return ssd_warm_up(self._store, self._dataset, self._settings, chunks)

    def turns(self, tier: SsdTier, stopping: threading.Event) -> Turn:
        """See `FilledTier`."""
        return behind_readers(tier, stopping)


class BackgroundWarmUp:
    """The warm-up of one process. Thread-safe. A forked child has none; its parent's continues."""

    def __init__(self, tier: FilledTier, dataset: DatasetRef) -> None:
        """Prepare the warm-up; it starts at the first `load`."""
        self._filled, self._dataset = tier, dataset
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._wanted: Sequence[ChunkRef] | None = None
        self._work: WarmUp | None = None
        self._progress = WarmUpProgress()
        self._noted_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="ssd-warm-up", daemon=True)

    def load(self, chunks: Sequence[ChunkRef]) -> None:
        """Load these chunks, instead of those of the last call. Returns at once."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._wanted = chunks
            if self._work is not None:
                self._work.stop()
            if self._thread.ident is None and not self._stopping.is_set():
                self._thread.start()
            self._changed.notify_all()

    def progress(self) -> WarmUpProgress:
        """Return a copy of the progress, which is never changed later."""
        return self._progress

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop the warm-up.

        A fetch of a block that takes longer than `timeout_s` is left to the end of the process.
        """
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
        while (chunks := self._next()) is not None:
            try:
                self._load_all(chunks)
            except Exception as error:  # readers work without the warm-up
                log.exception("cannot load dataset %s to the SSD", self._dataset.name)
                self._set_state(f"stopped: {error}")
        self._set_state("stopped")

    def _next(self) -> Sequence[ChunkRef] | None:
        """Take the latest snapshot to load, once; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or self._wanted is not None)
            wanted, self._wanted = self._wanted, None
            return None if self._stopping.is_set() else wanted

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._wanted is not None

    def _load_all(self, chunks: Sequence[ChunkRef]) -> None:
        while not self._is_over():
            try:
                if self._load_once(chunks):
                    return
                # The other process notes the progress.
                self._progress = replace(self._progress, state=_ANOTHER_LOADS)
            except (SsdUnavailable, ChunkStoreError) as error:
                log.info("the warm-up of %s waits: %s", self._dataset.name, error)
                self._set_state(f"waits: {error}")
            self._stopping.wait(_AGAIN_S)

    def _load_once(self, chunks: Sequence[ChunkRef]) -> bool:
        """Load the missing chunks once; False while another process warms the dataset."""
        tier = self._filled.open()
        found = warmth(tier, self._dataset, chunks)
        self._progress = replace(self._progress, **asdict(found))
        if found.is_all:
            self._set_state("done")
            return True
        with _claimed(tier, claim_name(self._dataset.id)) as is_ours:
            if not is_ours:
                return False
            self._load_missing(chunks, tier)
            return True

    def _load_missing(self, chunks: Sequence[ChunkRef], tier: SsdTier) -> None:
        work = self._filled.work(tier, chunks)
        with self._changed:
            if self._is_over():
                return
            self._work = work
        self._set_state(RUNS)
        before = self._progress.loaded_bytes

        def advance(chunks: int, size_bytes: int) -> None:
            with self._changed:
                if self._work is not work:
                    return  # a thread that a failed run left behind; its chunk is counted by now
                now = self._progress
                self._progress = replace(
                    now,
                    cached_chunks=now.cached_chunks + (chunks if size_bytes else 0),
                    cached_bytes=min(now.bytes, now.cached_bytes + size_bytes),
                    loaded_bytes=before + work.loaded_bytes,
                )
                is_due = time.monotonic() - self._noted_at >= _NOTE_S
                self._noted_at = time.monotonic() if is_due else self._noted_at
            if is_due:
                write_note(self._filled.folder, self._dataset, self._progress)

        try:
            report = work.run(advance, JOBS, self._filled.turns(tier, self._stopping))
        finally:
            with self._changed:
                self._work = None
        if self._is_over():
            return
        # Threads that a failed run has left behind may have loaded chunks that nobody counted.
        found = warmth(tier, self._dataset, chunks)
        self._progress = replace(self._progress, failed=report.failed, **asdict(found))
        self._set_state("no room" if report.no_room else "done")
        log.info(
            "%s: %d chunks were loaded to the SSD, %d have no room, %d failed",
            *(self._dataset.name, report.loaded, report.no_room, report.failed),
        )

    def _set_state(self, state: str) -> None:
        if state != self._progress.state:
            self._progress = replace(self._progress, state=state)
            write_note(self._filled.folder, self._dataset, self._progress)


def ssd_tier_statistics(
    settings: SsdSettings | None, warmup: BackgroundWarmUp | None
) -> SsdTierStatistics | None:
    """Return the SSD statistics for `stats.json`; None without a tier."""
    if settings is None:
        return None
    tier = shared_tier(settings).statistics()
    shown = {name: getattr(tier, name) for name in TierStatistics.__dataclass_fields__}
    return SsdTierStatistics(**shown, warmup=None if warmup is None else warmup.progress())


def behind_readers(
    tier: SsdTier, stopping: threading.Event, now: Callable[[], float] = time.monotonic
) -> Turn:
    """Return turns that leave the store to readers while these miss."""
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
        """Return the misses of all processes of the node, over all datasets."""
        segments = self._tier.segments
        if segments is None:
            return None
        return self._tier.call(lambda: sum(of.misses for of in segments.occupancy()), 0)


@contextmanager
def _claimed(tier: SsdTier, name: bytes) -> Iterator[bool]:
    """Yield whether this process holds the claim; it keeps the claim until the context exits."""
    segments = tier.segments
    # Claims wait for no disk. Within a deadline, one that came late would be nobody's for ever.
    try:
        is_ours = segments is not None and segments.claim(name)
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        if segments is not None and is_ours:
            with suppress(OSError):
                segments.disclaim(name)

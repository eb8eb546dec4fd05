"""Cache nodes that warm a dataset by themselves once a part of it was missed (DIESEL §4.2).

The first miss makes the node look for the newest published snapshot. The chunks of the snapshot
that placement gives to this node are loaded in the background, by one `BackgroundWarmUp` for each
dataset. A miss of a chunk that a warm-up has considered starts no other one: it was evicted, or has
no room, and would be evicted again. A miss of another chunk does, `LOOK_AGAIN_S` later at the
earliest: the dataset has a newer snapshot, or the node a larger share. A node that joins makes the
share smaller, without a miss.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chunkstore.chunk_source import ChunkRef
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.dataset_chunks import DatasetChunks
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.membership.registry import HEARTBEAT_S
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ssd.settings import SsdSettings, unavailable
from dieselfs.cache.ssd.warmup_notes import WarmUpProgress
from dieselfs.cache.warmup.background_warmup import JOBS, BackgroundWarmUp
from dieselfs.cache.warmup.ssd_warmup import SsdTarget
from dieselfs.cache.warmup.warm_up import Turn, WarmUp
from dieselfs.snapshots.snapshot_choice import newest_known
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 30.0
"""The time after which a chunk that is unknown makes the node look for a newer snapshot."""
SETTLED_S: Final = 2.5 * HEARTBEAT_S
"""The time for which the nodes must stay the same before a share is computed.

When a cluster starts, the first node does not know the others yet.
"""
PATIENCE_S: Final = 10.0
"""The time that a load waits for clients' reads of the store, before it goes on beside them.

On a node that always misses a warm-up would otherwise never end.
"""
_MAX_DATASETS: Final = 1024


@dataclass(slots=True)
class _Warmed:
    """The knowledge of one dataset."""

    work: BackgroundWarmUp | None = None
    considered: frozenset[bytes] = frozenset()
    """The ids of this node's chunks in the last snapshot that was looked at."""
    chunks: DatasetChunks | None = None
    trouble: str = ""
    """The error of the last look, which is logged once."""
    members: Sequence[Member] = ()
    """The nodes among which the share was computed."""
    look_again_at: float = field(default=float("inf"))
    """The time of the next look; endless while one is under way."""


class WarmOnMiss:
    """The warm-ups of one cache node. Thread-safe."""

    def __init__(
        self, node: CacheNode, store: ObjectStore, settings: SsdSettings, snapshots: Path
    ) -> None:
        """Watch the misses of a node from now on. `snapshots` is the folder for pulled snapshots.

        `settings` are those of the node's SSD.
        """
        self._node, self._store, self._settings = node, store, settings
        self._snapshots = snapshots
        self._settled_s = SETTLED_S if self._node.announces else 0.0
        self._places = threading.Semaphore(JOBS)
        """Loads at a time, over all datasets."""
        self._changed = threading.Condition()
        self._warmed: dict[bytes, _Warmed] = {}
        self._to_look: deque[DatasetChunks] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="warm-on-miss", daemon=True)
        self._thread.start()
        node.watch_misses(self._missed, self.progress)

    def progress(self) -> Mapping[bytes, WarmUpProgress]:
        """Return the progress of each dataset that is warmed, by the dataset's id."""
        with self._changed:
            known = list(self._warmed.items())
        return {id_: of.work.progress() for id_, of in known if of.work is not None}

    def close(self, timeout_s: float = 0.2) -> None:
        """Load no more. Loads under way are left to the end of the process."""
        with self._changed:
            self._is_closed = True
            known = list(self._warmed.values())
            self._changed.notify_all()
        for of in known:
            if of.work is not None:
                of.work.close(timeout_s / len(known))

    def _missed(self, chunks: DatasetChunks, chunk: bytes) -> None:
        """Note a miss, which a thread of the server has had. 0.2 µs for a known chunk."""
        found = self._warmed.get(chunks.dataset.id)
        if found is not None and (
            chunk in found.considered or time.monotonic() < found.look_again_at
        ):
            return
        with self._changed:
            if found is None:
                if len(self._warmed) >= _MAX_DATASETS or chunks.dataset.id in self._warmed:
                    return
                found = self._warmed[chunks.dataset.id] = _Warmed()
            found.look_again_at = float("inf")
            self._to_look.append(chunks)
            self._changed.notify_all()

    def _run(self) -> None:
        while (chunks := self._next()) is not None:
            found = self._warmed[chunks.dataset.id]
            try:
                self._look(chunks, found)
            except Exception as error:  # clients are served without the warm-up
                level = logging.DEBUG if str(error) == found.trouble else logging.WARNING
                found.trouble = str(error)
                log.log(level, "cannot warm dataset %s: %s", chunks.dataset.name, error)
            else:
                found.trouble = ""
            finally:
                found.look_again_at = time.monotonic() + LOOK_AGAIN_S

    def _next(self) -> DatasetChunks | None:
        with self._changed:
            while not self._is_closed and not self._to_look:
                self._changed.wait(max(LOOK_AGAIN_S, 1.0))
                self._to_look.extend(self._with_new_nodes())
            return None if self._is_closed else self._to_look.popleft()

    def _with_new_nodes(self) -> list[DatasetChunks]:
        """Return the datasets of which this node's share was computed without a present node."""
        now = set(self._node.members())
        return [
            of.chunks
            for of in self._warmed.values()
            if of.chunks is not None and not now <= set(of.members)
        ]

    def _settled_members(self) -> Sequence[Member]:
        """Wait until the nodes stay the same; return them."""
        with self._changed:
            while True:
                found = self._node.members()
                until = time.monotonic() + self._settled_s
                while time.monotonic() < until and not self._is_closed:
                    self._changed.wait(until - time.monotonic())
                if self._is_closed or set(found) == set(self._node.members()):
                    return found

    def _look(self, chunks: DatasetChunks, found: _Warmed) -> None:
        """Load this node's share of the newest snapshot, unless that is under way or was done."""
        dataset = chunks.dataset
        with Snapshot.open(newest_known(dataset.name, self._snapshots, self._store)) as snapshot:
            if snapshot.dataset != dataset:
                raise SnapshotRefused(
                    "the newest snapshot is of a former or later dataset of this name"
                )
            members = self._settled_members()
            share = self._share(snapshot, members)
        found.chunks, found.members = chunks, members
        considered = frozenset(chunk.id.value for chunk in share)
        if considered == found.considered or self._is_closed:
            return
        log.info("warming dataset %s: %d chunks are this node's", dataset.name, len(share))
        if found.work is None:
            found.work = BackgroundWarmUp(_NodeTier(self, chunks), dataset)
        found.considered = considered
        found.work.load(share)

    def _share(self, snapshot: Snapshot, members: Sequence[Member]) -> list[ChunkRef]:
        """Return the chunks of which this node is the owner."""
        placement, me = Placement(members), self._node.member.id
        ids = snapshot.columns.chunk_id.view("u1").reshape(-1, 16)
        mine = [at for at, member in enumerate(placement.members) if member.id == me]
        owners = placement.owners(ids).tolist()
        return [snapshot.chunk(number) for number, owner in enumerate(owners) if owner in mine]

    @contextmanager
    def turn(self, stopping: threading.Event) -> Iterator[None]:
        """Wait for a place among the loads of this node, and while clients wait for the store."""
        with self._places:
            deadline = time.monotonic() + PATIENCE_S
            while not stopping.is_set() and time.monotonic() < deadline:
                if self._node.wait_until_idle(0.1):
                    break
            yield


class _NodeTier:
    """The SSD of a cache node, with the chunks of one dataset: a `FilledTier`."""

    def __init__(self, warming: WarmOnMiss, chunks: DatasetChunks) -> None:
        self.folder = warming._settings.folder
        self._warming, self._chunks = warming, chunks
        self._has_said_too_large = False

    def open(self) -> SsdTier:
        tier = self._warming._node.tier
        if tier.segments is None:
            raise unavailable(self._warming._settings, tier)
        return tier

    def work(self, tier: SsdTier, chunks: Sequence[ChunkRef]) -> WarmUp:
        dataset = self._chunks.dataset
        target = SsdTarget(
            *(tier, self._warming._settings, dataset, self._chunks.warm), keeps_others=True
        )
        work = WarmUp(target, chunks)
        for refused in work.report().refused:
            if not self._has_said_too_large:
                self._has_said_too_large = True
                log.warning(
                    "dataset %s does not fit: %d of its %d chunks here are left to their readers, "
                    "since %s",
                    *(dataset.name, refused.chunks, len(chunks), refused.detail),
                )
        return work

    def turns(self, tier: SsdTier, stopping: threading.Event) -> Turn:
        return lambda: self._warming.turn(stopping)

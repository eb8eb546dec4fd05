"""One node of a cache cluster: an SSD tier for all datasets of a store, behind a server.

The server speaks the wire of the peer cache. The node alone decides what it keeps, and asks nothing
but its SSD and the store.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.ssd.policy_choice import LRU
from chunkstore.ssd.policy_counts import PolicyCounts, total_of
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tier_statistics import TierStatistics
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cache.cluster.chunk_memory import ChunkMemory
from dieselfs.cache.cluster.dataset_chunks import DatasetChunks, NodeParts
from dieselfs.cache.cluster.lease_heartbeat import LeaseHeartbeat
from dieselfs.cache.cluster.node_quotas import NodeQuotas
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.occupied_bytes import OccupiedBytes
from dieselfs.cache.cluster.store_reads import StoreReads
from dieselfs.cache.cluster.topic import CacheClusterTopic
from dieselfs.cache.membership.redis_registry import RedisRegistry
from dieselfs.cache.membership.registry import StaticRegistry
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import CachedChunks, NodeStatus, PolicyStatus
from dieselfs.cache.ports.member_record import MAX_NODE_BYTES
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ssd.warmup_notes import WarmUpProgress
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_server import PeerServer, PeerServerStatistics
from dieselfs.errors import CacheFull, ConfigError
from metadata.errors import IndexUnavailable

log = logging.getLogger(__name__)

WORKERS: Final = 256
"""The most blocks that are loaded at a time.

Most of them wait for their turn at the store, and those from the SSD are read meanwhile. A waiting
thread takes 15 KB.
"""
OPEN_S: Final = 10.0
"""The time that a node waits for its SSD before it serves; then the SSD opens in the background."""
LEAVE_S: Final = 0.5
"""The time limit for giving the lease back."""
_MAX_DATASETS: Final = 1024
_NOBODY: Final = Member("", PeerAddress("", 0), 0)


@dataclass(frozen=True, slots=True)
class CacheNodeStatistics:
    """Counters of one node since it began, unless stated otherwise."""

    from_store_bytes: int
    from_ssd_bytes: int
    memory_bytes: int
    """The current bytes of chunks that were just read."""
    datasets: int
    """The number of datasets that clients have asked for."""
    tier: TierStatistics
    server: PeerServerStatistics
    warmups: Mapping[str, WarmUpProgress]
    """The warm-ups of `--warm-on-miss`, by the ids of their datasets in hexadecimal."""


class CacheNode:
    """A cache node; it serves from its creation until `close`.

    It implements `ServedTasks` for its server.
    """

    def __init__(self, settings: CacheNodeSettings, store: ObjectStore) -> None:
        """Open the SSD and begin to serve.

        Raises `OSError` if it cannot listen. Raises `ConfigError` if the SSD folder or the Redis is
        unusable, or if an SSD without a given size cannot be opened.
        """
        self._settings = settings
        self._tier = settings.ssd.open()
        self._lock = threading.Lock()
        self._datasets: OrderedDict[str, DatasetChunks] = OrderedDict()
        self._occupied = OccupiedBytes(self._tier)
        self._warmups: Callable[[], Mapping[bytes, WarmUpProgress]] = dict
        self._server: PeerServer | None = None
        self._heartbeat: LeaseHeartbeat | None = None
        self._tier.wait_until_open(OPEN_S)
        try:
            self._budget_bytes = _budget_bytes(settings, self._tier)
            self._parts = self._make_parts(store)
            self.quotas = NodeQuotas(self._parts, settings.ssd.folder)
            """The quotas that are allocated to datasets."""
            self._begin()
        except BaseException:
            self.close(0.0)
            raise

    def _make_parts(self, store: ObjectStore) -> NodeParts:
        reads = StoreReads(store, self._tier.store_took)

        def excess() -> int:
            return reads.bytes - (
                0 if self._server is None else self._server.statistics().sent_bytes
            )

        return NodeParts(
            reads,
            self._tier,
            ChunkMemory(self._settings.memory_bytes),
            RangeAllowance(self._budget_bytes, excess),
            self._status,
        )

    def _begin(self) -> None:
        settings = self._settings
        registry = None
        topic = str(CacheClusterTopic(settings.cache_cluster))
        if settings.leases is not None:
            try:
                registry = RedisRegistry(settings.leases.url, topic)
            except IndexUnavailable as error:
                raise ConfigError(
                    f"cannot reach the Redis in which cache nodes find each other: {error}"
                ) from error
        self._server = PeerServer(
            OperatingSystem(),
            settings.secret,
            topic,
            settings.id,
            settings.listen,
            _NoChunks(self),
            tasks=self,
            max_workers=WORKERS,
        )
        if registry is not None:
            self._heartbeat = LeaseHeartbeat(registry, self.member)

    @property
    def member(self) -> Member:
        """The node as it announces itself: its weight is the size of its SSD in MiB."""
        settings = self._settings
        host = "".join(letter for letter in socket.gethostname() if letter.isprintable())
        shown = host.encode()[:MAX_NODE_BYTES].decode(errors="ignore")
        return Member(settings.id, settings.address, max(1, self._budget_bytes >> 20), shown)

    @property
    def cache_cluster(self) -> str:
        """The name of its cache cluster."""
        return self._settings.cache_cluster

    @property
    def budget_bytes(self) -> int:
        """The budget of the SSD."""
        return self._budget_bytes

    @property
    def tier(self) -> SsdTier:
        """The SSD tier, which may be out of service."""
        return self._tier

    def members(self) -> Sequence[Member]:
        """Return the nodes among which clients place chunks, as far as this node knows them."""
        if self._settings.listed:
            return StaticRegistry(self._settings.listed).announce(_NOBODY)
        return [self.member] if self._heartbeat is None else self._heartbeat.members

    @property
    def announces(self) -> bool:
        """True if the nodes find each other in Redis, and may come and go."""
        return self._heartbeat is not None

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no client waits for the store; return False if one still does."""
        return self._parts.store.wait_until_idle(timeout_s)

    def watch_misses(
        self,
        missed: Callable[[DatasetChunks, bytes], None],
        warmups: Callable[[], Mapping[bytes, WarmUpProgress]],
    ) -> None:
        """Call `missed` for each read that the SSD does not answer, and show these warm-ups."""
        self._parts.missed, self._warmups = missed, warmups

    def serves(self, task: str) -> bool:
        """Return whether the topic is one of this cache cluster."""
        topic = CacheClusterTopic.parse(task)
        return topic is not None and topic.cache_cluster == self._settings.cache_cluster

    def cached(self, task: str) -> CachedChunks:
        """Return the chunks of the topic's dataset; none if it names no dataset."""
        topic = CacheClusterTopic.parse(task)
        assert topic is not None
        if topic.dataset is None:
            return _NoChunks(self)
        with self._lock:
            found = self._datasets.get(task)
            if found is None:
                found = self._datasets[task] = DatasetChunks(topic.dataset, self._parts)
                self._tier.register(topic.dataset)
                log.info("this node now serves dataset %s", topic.dataset.name)
                if len(self._datasets) > _MAX_DATASETS:
                    self._datasets.popitem(last=False)  # connected clients keep theirs
            return found

    def status(self) -> NodeStatus:
        """Return the status that pongs carry, without the counters of what was served.

        The bytes of the share are those of the datasets that the node warms by itself.
        `from_peers_bytes` are the bytes from its SSD. `budget_bytes` is 0 while the SSD is out of
        service.
        """
        return self._status()

    def policy_status(self) -> PolicyStatus:
        """See `ReportsPolicy`."""
        parts, tier, runner = self._parts, self._tier.statistics(), self._tier.runner
        sent = 0 if self._server is None else self._server.statistics().sent_bytes
        total = PolicyCounts() if runner is None else total_of(runner.counts.all())
        shadow = None if runner is None else runner.shadow
        of_shadow = PolicyCounts() if shadow is None else total_of(shadow.counts.all())
        return PolicyStatus(
            policy=LRU if runner is None else runner.policy,
            shadow="" if shadow is None else shadow.policy.name,
            hit_bytes=parts.from_ssd_bytes,
            miss_bytes=parts.missed_bytes,
            admitted_bytes=total.admitted_bytes,
            refused_bytes=total.refused_bytes,
            evicted_bytes=total.evicted_bytes,
            reinserted_bytes=total.reinserted_bytes,
            written_bytes=tier.written_bytes,
            absorbed_bytes=max(0, sent - parts.store.bytes),
            shadow_hit_bytes=of_shadow.hit_bytes,
            shadow_miss_bytes=of_shadow.miss_bytes,
        )

    def statistics(self) -> CacheNodeStatistics:
        """Return the counters."""
        assert self._server is not None
        return CacheNodeStatistics(
            from_store_bytes=self._parts.store.bytes,
            from_ssd_bytes=self._parts.from_ssd_bytes,
            memory_bytes=self._parts.memory.cached[1],
            datasets=len(self._datasets),
            tier=self._tier.statistics(),
            server=self._server.statistics(),
            warmups={id_.hex(): of for id_, of in self._warmups().items()},
        )

    def close(self, timeout_s: float = 3.0) -> None:
        """Leave the cache cluster, end connections and close the SSD, in this order.

        Data that is queued for the SSD is written as far as there is time.
        """
        deadline = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        if self._heartbeat is not None:
            self._heartbeat.end(min(LEAVE_S, timeout_s))
        if self._server is not None:
            self._server.close(left_s() / 3)
        self._occupied.end(left_s() / 3)
        self._tier.wait_until_written(left_s() / 2)
        self._tier.close(left_s())

    def __enter__(self) -> CacheNode:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _status(self) -> NodeStatus:
        in_service = self._tier.segments is not None
        warmups = self._warmups().values()
        return NodeStatus(
            budget_bytes=self._budget_bytes if in_service else 0,
            cached_bytes=self._occupied.last_known if in_service else 0,
            blocks=self._parts.memory.cached[0],
            share_bytes=sum(of.bytes for of in warmups),
            share_cached_bytes=sum(of.cached_bytes for of in warmups),
            from_store_bytes=self._parts.store.bytes,
            from_peers_bytes=self._parts.from_ssd_bytes,
        )


class _NoChunks:
    """The `CachedChunks` of a client that only asks for the node's status.

    It also implements `ReportsPolicy`.
    """

    def __init__(self, node: CacheNode) -> None:
        self.status = node.status
        self.policy_status = node.policy_status

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return None

    def head(self, chunk: ChunkId) -> memoryview | None:
        return None

    def block(self, block: CacheBlock) -> memoryview | None:
        return None

    def is_loading(self, block: CacheBlock) -> bool:
        return False

    def load(self, block: CacheBlock) -> None:
        raise CacheFull("cannot load a block: the client named no dataset")


def _budget_bytes(settings: CacheNodeSettings, tier: SsdTier) -> int:
    """Return the budget of the SSD.

    It is the same after a restart: a node's share is computed from it.
    """
    if settings.ssd.budget_bytes is not None:
        return settings.ssd.budget_bytes
    segments = tier.segments
    if segments is None:
        raise ConfigError(
            f"cannot determine the size of the SSD tier: the folder {settings.ssd.folder} "
            "does not answer",
            "set the size with --ssd-size",
        )
    return segments.budget_regions * segments.region_bytes

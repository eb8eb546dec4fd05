"""The nodes of a cache cluster that one process may ask for chunks of one dataset.

The process finds and pings them itself. A client is a member of weight 0: it owns nothing, is not
announced, and is never asked. All begins with the first read, which waits until it is known which
nodes answer, for a second at most.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.ssd.reader_tags import ReaderTags, dataset_tags
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.topic import CacheClusterTopic
from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.membership.placement import Placement, reachable
from dieselfs.cache.membership.registry import MembershipRegistry, StaticRegistry
from dieselfs.cache.peers.task_peers import Peers
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.peer_settings import StaticPeers
from dieselfs.cache.ports.request_tags import RequestTags, TagsOf
from dieselfs.cache.ports.runtime import PeerAddress, Runtime
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import ConfigError
from metadata.errors import IndexUnavailable

if TYPE_CHECKING:
    from chunkstore.stores.read_turn import Payer
    from dieselfs.cache.cluster.cached_bytes import CachedOfNodes

FIRST_LOOK_S: Final = 1.0
"""The time limit for the first read's wait."""
_LOOK_S: Final = 0.005


class CacheClusterPeers:
    """The `KnownPeers` of one process. Thread-safe.

    A forked child has connections, pings and breakers of its own. It pickles to its arguments.
    """

    def __init__(
        self,
        settings: CacheClusterSettings,
        dataset: DatasetRef,
        tags: ReaderTags | None = None,
        payer: Payer | None = None,
    ) -> None:
        """`tags` tell the nodes' cache policies for which job this process reads.

        `payer` gives the budget that pays for what nodes fetch for it.
        """
        self._arguments = settings, dataset, tags, payer
        self._payer = payer
        self._cached: CachedOfNodes = {}
        self._joining: threading.Lock
        self._joined: _Joined | None
        self._peers: Peers | None
        self._end: weakref.finalize[..., CacheClusterPeers] | None = None
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheClusterPeers, self._arguments

    def renew(self) -> None:
        """Start again in a forked child, which has no threads of its parent."""
        self._joining = threading.Lock()
        self._joined = self._peers = None
        if self._end is not None:
            self._end.detach()
            self._end = None

    def current(self) -> Peers | None:
        """Return the peers, or None while no node is known. 0.2 µs most of the time."""
        joined = self._joined or self._join()
        view, peers = joined.board.current(), self._peers
        if view is None:
            return None
        if peers is None or peers.view is not view:
            placement = None if peers is None else peers.placement
            if placement is None or placement.members != reachable(view):
                placement = Placement.of(view)
            peers = Peers(
                view, placement, joined.client, joined.breakers, joined.runtime, self._payer
            )
            self._peers = peers
        return peers

    def breakers(self) -> Breakers | None:
        """Return the breakers, or None before the first read."""
        return None if self._joined is None else self._joined.breakers

    def cached_bytes(self) -> int:
        """Return the bytes of the dataset that the cluster caches: the sum over its nodes.

        0 before the first read. One thread calls it; a node that dies costs it a second, once.
        """
        peers = None if self._joined is None else self.current()
        if peers is None:
            return 0
        from dieselfs.cache.cluster.cached_bytes import cached_of_nodes

        self._cached = cached_of_nodes(peers, self._cached)
        return sum(size_bytes for size_bytes, _ in self._cached.values())

    def close(self) -> None:
        """End connections and pings; the next read starts them again."""
        with self._joining:
            end, self._end = self._end, None
            self._joined = self._peers = None
        if end is not None:
            end()

    def _join(self) -> _Joined:
        with self._joining:
            if self._joined is None:
                joined = _Joined(*self._arguments[:3])
                self._end = weakref.finalize(self, joined.close)
                self._end.atexit = False  # threads end with the process
                joined.wait_for_first_look()
                self._joined = joined
            return self._joined


class _Joined:
    """One process's part in a cache cluster, while it has one."""

    def __init__(
        self, settings: CacheClusterSettings, dataset: DatasetRef, tags: ReaderTags | None
    ) -> None:
        self.runtime: Runtime = OperatingSystem()
        me = Member(f"client/{os.getpid()}", PeerAddress("client", 1), 0)
        topic = str(CacheClusterTopic(settings.name, dataset))
        tags_of = None if tags is None else request_tags(tags, dataset)
        self.client = PeerClient(self.runtime, settings.secret, topic, me.id, tags_of)
        self.board = _Board()
        self.breakers = Breakers(self.runtime.now)
        registry = cluster_registry(settings)
        self._membership = TaskMembership(
            self.runtime, registry, self.client, me, self.board, self.breakers
        )
        self._membership.start()

    def wait_for_first_look(self) -> None:
        deadline = self.runtime.now() + FIRST_LOOK_S
        while self.runtime.now() < deadline:
            published, view = self.board.current(), self._membership.view
            others = {member.id for member in view.members} - {view.me.id}
            if published is not None and others <= view.answered.keys() | view.silent:
                self.board.publish(view)
                return
            self.runtime.sleep(_LOOK_S)

    def close(self) -> None:
        self._membership.close(0.0)
        self.client.close()


class _Board:
    """The `ViewBoard` of this process alone."""

    def __init__(self) -> None:
        self._view: View | None = None

    def publish(self, view: View) -> None:
        self._view = view

    def withdraw(self) -> None:
        self._view = None

    def current(self) -> View | None:
        return self._view


def request_tags(tags: ReaderTags, dataset: DatasetRef) -> TagsOf | None:
    """Return the tags of a reader's requests as they are at each request.

    None if they say nothing but the dataset, which the connection names.
    """
    if not tags.job and tags.may_keep and tags.bucket_of == dataset_tags(dataset).bucket_of:
        return None

    def of(chunk: ChunkId) -> RequestTags:
        return RequestTags(tags.job, tags.epoch, tags.bucket_of(chunk.value), tags.may_keep)

    return of


def cluster_registry(settings: CacheClusterSettings) -> MembershipRegistry:
    """Return the membership registry as a client reads it. Raises `ConfigError`."""
    if isinstance(settings.registry, StaticPeers):
        return StaticRegistry(settings.registry.addresses)
    from dieselfs.cache.membership.redis_registry import RedisRegistry

    try:
        return RedisRegistry(
            settings.registry.url, str(CacheClusterTopic(settings.name)), only_looks=True
        )
    except IndexUnavailable as error:
        raise ConfigError(
            f"cannot look up the nodes of the cache cluster in Redis: {error}"
        ) from error

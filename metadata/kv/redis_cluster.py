"""The key-value store in a Redis Cluster.

Every map's key names a slot, every slot has a master, and both may change. redis-py's own cluster
client repeats commands one by one, each with timeouts of its own, so a put in a fail-over has no
useful bound, and it refuses scripts in pipelines. Here a round of commands goes to all masters at
once. Failed commands are repeated with a fresh map of the slots until one deadline.
"""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from metadata.errors import IndexUnavailable
from metadata.kv.evictions import Evictions
from metadata.kv.redis_eviction import CONFIGURED, QUESTIONS, joined, read_answers, warn
from metadata.kv.redis_maps import PATIENCE_S, SPLIT_ABOVE, RedisMaps
from metadata.kv.redis_pipeline import (
    SOCKET_TIMEOUT_S,
    Pipeline,
    RedisAddress,
    RedisCommand,
    RedisUrl,
    Reply,
    exchange,
    is_error,
    unavailable,
)
from metadata.url_secrets import without_secrets


class RedisClusterStore(RedisMaps):
    """A `KeyValueStore` in a Redis Cluster; it may be used on both sides of a fork.

    `url` is `redis+cluster://[user:password@]host:port[,host:port…]` (`rediss+cluster://` with
    TLS), with any of its nodes.
    """

    _transient = (
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.MovedError,
        exceptions.TryAgainError,
        exceptions.ClusterDownError,
        exceptions.MasterDownError,
        exceptions.ReadOnlyError,
    )

    def __init__(
        self, url: str, *, split_above: int = SPLIT_ABOVE, patience_s: float = PATIENCE_S
    ) -> None:
        self._nodes = node_urls(url)
        super().__init__(self._nodes[0], split_above, patience_s)
        self._slots: list[RedisAddress | None] = []
        self._seats: dict[RedisAddress, int] = {}
        """The first slot that each master serves; a server that takes over has the same."""
        error = self._load_slots(time.monotonic() + SOCKET_TIMEOUT_S)
        if not self._slots:
            raise self._unavailable(error)
        self.evictions(now=True)
        warn(self._evictions, self._shown)

    def _ask_for_evictions(self) -> Evictions:
        masters = sorted({address for address in self._slots if address}, key=str)
        pools = [self._pools.pool(master) for master in masters]
        answers = exchange([Pipeline(pool, QUESTIONS) for pool in pools])

        def configured(pool: Any) -> Reply:
            return exchange([Pipeline(pool, [CONFIGURED])])[0][0]

        return joined(
            read_answers(replies, partial(configured, pool), self._shown)
            for pool, replies in zip(pools, answers, strict=True)
        )

    def _round(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        slots = self._slots
        replies: list[Reply] = [None] * len(commands)
        by_node: dict[RedisAddress, list[int]] = defaultdict(list)
        for at, command in enumerate(commands):
            address = command.asking or slots[key_slot(command.key)]
            if address is None:
                replies[at] = exceptions.ClusterDownError(
                    "no server of the cluster serves a hash slot"
                )
            else:
                by_node[address].append(at)
        answers = self._exchange(
            (self._seats.get(address, address), address, [commands[at] for at in places])
            for address, places in by_node.items()
        )
        for places, own in zip(by_node.values(), answers, strict=True):
            for at, answer in zip(places, own, strict=True):
                replies[at] = answer
        return replies

    def _retry(self, command: RedisCommand, error: exceptions.RedisError) -> RedisCommand | None:
        # In redis-py a MovedError is an AskError too; it needs a new map of the slots.
        if isinstance(error, exceptions.AskError) and not isinstance(error, exceptions.MovedError):
            return replace(command, asking=RedisAddress(error.host, error.port))
        return super()._retry(command, error)

    def _before_retry(self) -> None:
        self._load_slots(time.monotonic() + SOCKET_TIMEOUT_S)

    def _load_slots(self, deadline: float) -> exceptions.RedisError | None:
        """Ask one node after the other for the masters of the slots.

        Returns the last error if no node answers.
        """
        masters = list({address for address in self._slots if address})
        random.shuffle(masters)
        error: exceptions.RedisError | None = None
        for address in [*masters, *(node.address for node in self._nodes)]:
            if error is not None and time.monotonic() > deadline:
                break
            question = RedisCommand(b"", ("CLUSTER", "SLOTS"))
            [[reply]] = exchange([Pipeline(self._pools.pool(address), [question])])
            if not is_error(reply):
                self._take(reply, address)
                return None
            error = reply
        return error

    def _take(self, reply: Reply, asked: RedisAddress) -> None:
        slots = _masters_by_slot(reply, asked)
        seats: dict[RedisAddress, int] = {}
        for slot, master in enumerate(slots):
            if master is not None:
                seats.setdefault(master, slot)
        self._seats, self._slots = seats, slots

    def _unavailable(self, error: exceptions.RedisError | None) -> IndexUnavailable:
        if error is None or "cluster support disabled" in str(error):
            return IndexUnavailable(
                f"index {self._shown}: the server is not a cluster: write redis:// instead"
            )
        return unavailable(self._shown, error)


def node_urls(url: str, timeout_s: float | None = None) -> list[RedisUrl]:
    """Return the addresses of the nodes named in `redis+cluster://…`.

    Raises `IndexUnavailable` if the address has another form.
    """
    scheme, _, rest = url.partition("+cluster://")
    login, at, places = rest.rpartition("@")
    hosts = re.split("[/?]", places)[0]
    options = places[len(hosts) :]
    shown = without_secrets(url)
    if scheme not in ("redis", "rediss") or not hosts or not all(hosts.split(",")):
        raise IndexUnavailable(
            f"index {shown}: the address is not a cluster's; write redis+cluster://host:7000,host:7001"
        )
    return [
        RedisUrl(f"{scheme}://{login}{at}{host}{options}", shown, timeout_s)
        for host in hosts.split(",")
    ]


def master_of(key: bytes, reply: Reply, asked: RedisAddress) -> RedisAddress | None:
    """Return the server of a key by an answer to CLUSTER SLOTS; None if no server has it now."""
    return _masters_by_slot(reply, asked)[key_slot(key)]


def _masters_by_slot(reply: Reply, asked: RedisAddress) -> list[RedisAddress | None]:
    """Return the master of each slot from an answer to CLUSTER SLOTS.

    A row is first slot, last slot, master, replicas…; a node is host, port, id. An empty host means
    the node that was asked.
    """
    slots: list[RedisAddress | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in reply:
        if host != b"?":
            master = RedisAddress(host.decode() if host else asked.host, int(port))
            slots[first : last + 1] = [master] * (last + 1 - first)
    return slots

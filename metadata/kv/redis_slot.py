"""Commands about the keys of one slot, each sent once, with short timeouts.

It works on one server or in a cluster, where the slot may move. A command that fails is not
repeated: its caller asks again anyway, about once a second.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from redis import exceptions

from metadata.errors import IndexUnavailable
from metadata.kv.redis_cluster import master_of, node_urls
from metadata.kv.redis_pipeline import (
    Pipeline,
    Pools,
    RedisAddress,
    RedisCommand,
    RedisUrl,
    Reply,
    advice,
    exchange,
    is_error,
    unavailable,
)

TIMEOUT_S: Final = 0.6
"""The bound of a connect, and of each wait for an answer.

A fresh connection, a script that the server does not know yet, and a master that has moved take 2 s
together.
"""
LOOK_UP_S: Final = 1.2
"""The time for finding a cluster's master, whose nodes are asked in turn."""
_REDIRECTIONS: Final = 3


class RedisSlot:
    """The server of a slot, for one thread at a time.

    `url` is as in `RedisServerStore` or, with `+cluster`, in `RedisClusterStore`. No connection is
    made before the first call.
    """

    def __init__(self, url: str, key: bytes) -> None:
        """Raise `IndexUnavailable` if `url` is not the address of a Redis. `key` is of the slot."""
        self._key = key
        self._cluster = url.partition("://")[0].endswith("+cluster")
        self._nodes = (
            node_urls(url, TIMEOUT_S) if self._cluster else [RedisUrl(url, None, TIMEOUT_S)]
        )
        self._pools = Pools(self._nodes[0])
        self._master: RedisAddress | None = None
        """The node of a cluster that served the slot last."""

    def __str__(self) -> str:
        return str(self._nodes[0])

    def ask(self, command: RedisCommand) -> Reply:
        """Return the answer. Raises `IndexUnavailable` after about 2 s."""
        if self._cluster and self._master is None:
            self._master = self._find_master()
        for _ in range(_REDIRECTIONS):
            reply = self._exchange(command.asking or self._master, command)
            match reply:
                case exceptions.NoScriptError() if not command.by_text:
                    command = replace(command, by_text=True)
                case exceptions.MovedError() if self._cluster:  # a subclass of AskError
                    self._master = self._named_server(reply)
                    command = replace(command, asking=None)
                case exceptions.AskError() if self._cluster:
                    command = replace(command, asking=self._named_server(reply))
                case _:
                    break
        if is_error(reply):
            self._master = None
            raise unavailable(self, reply, TIMEOUT_S) from reply
        return reply

    def strange(self) -> IndexUnavailable:
        """Return the error for an answer of an unknown form."""
        return IndexUnavailable(f"index {self}: the server sent an answer of an unknown form")

    def close(self) -> None:
        """Close the connections."""
        self._pools.close()

    def _exchange(self, address: RedisAddress | None, command: RedisCommand) -> Reply:
        [[reply]] = exchange([Pipeline(self._pools.pool(address), [command])], TIMEOUT_S)
        return reply

    def _named_server(self, error: exceptions.AskError) -> RedisAddress:
        """Return the server that an error names; without a host it is the one that was asked."""
        asked = self._master or self._nodes[0].address
        return RedisAddress(error.host or asked.host, error.port)

    def _find_master(self) -> RedisAddress:
        deadline = time.monotonic() + LOOK_UP_S
        problem = "no node of the cluster answered which node serves the key"
        for node in list(self._nodes):
            reply = self._exchange(node.address, RedisCommand(b"", ("CLUSTER", "SLOTS")))
            if not is_error(reply):
                master = master_of(self._key, reply, node.address)
                if master is not None:
                    return master
                problem = "no server of the cluster serves a hash slot"
            else:
                problem = advice(reply, TIMEOUT_S)
                if "cluster support disabled" in str(reply):
                    problem = "the server is not a cluster: write redis:// instead"
            self._nodes.append(self._nodes.pop(0))  # the next call starts with another node
            if time.monotonic() > deadline:
                break
        raise IndexUnavailable(f"index {self}: {problem}")

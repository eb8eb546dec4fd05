"""A set of leases in Redis: the entries renewed lately, by the clock of the server that keeps them.

It works on one server or in a cluster. There is one sorted set a name and one script a renewal,
which drops expired entries. The set may be lost: each live holder renews, and the set is restored.
A holder may keep larger values beside the set, which expire too. A call asks once, with short
timeouts; its caller renews, and so repeats it, anyway.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, Literal, TypeAlias

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
    Script,
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
MAX_ENTRIES: Final = 1024
MAX_ENTRY_BYTES: Final = 2048
_REDIRECTIONS: Final = 3
_RENEW: Final = Script("renew_lease.lua")
_PUT: Final = Script("put_lease.lua")
_LIST: Final = Script("list_leases.lua")

Put: TypeAlias = Literal["put", "restored", "full"]
"""The outcome of putting an entry.

"restored": the former one was gone; its lease has ended, or the server has lost all. "full": the
set has no room.
"""


class RedisLeaseSet:
    """A set of leases, for one thread at a time.

    `url` is as in `RedisServerStore` or, with `+cluster`, in `RedisClusterStore`. No connection is
    made before the first call.
    """

    def __init__(self, url: str, name: str) -> None:
        """Raise `IndexUnavailable` if `url` is not the address of a Redis."""
        self._key = name.encode()
        self._cluster = url.partition("://")[0].endswith("+cluster")
        self._nodes = (
            node_urls(url, TIMEOUT_S) if self._cluster else [RedisUrl(url, None, TIMEOUT_S)]
        )
        self._pools = Pools(self._nodes[0])
        self._master: RedisAddress | None = None
        """The node of a cluster that served the set last."""

    def __str__(self) -> str:
        return str(self._nodes[0])

    def renew(self, id: str, entry: bytes, lease_s: float) -> list[bytes]:
        """Put or renew the entry of `id`; return all that have a lease.

        They are at most 1,025 of at most 2 KiB. An entry is the id, a blank, and anything. Another
        holder's entry under the same id is replaced, and returned this once. Raises
        `IndexUnavailable` after about 2 s.
        """
        arguments = (id, entry, _ms(lease_s), str(MAX_ENTRIES), str(MAX_ENTRY_BYTES))
        return self._entries(RedisCommand(self._key, arguments, script=_RENEW, writes=True))

    def put(self, entry: bytes, former: bytes, lease_s: float) -> Put:
        """Put an entry in place of the holder's former one (b"": none), or renew it.

        It returns nothing else, for sets of many holders that need not know each other. Raises
        `IndexUnavailable`.
        """
        arguments = (former, entry, _ms(lease_s), str(MAX_ENTRIES))
        reply = self._ask(RedisCommand(self._key, arguments, script=_PUT, writes=True))
        if reply == 2:
            return "restored"
        return "put" if reply == 1 else "full"

    def entries(self) -> list[bytes]:
        """Return all entries that have a lease, as `renew` does. Raises `IndexUnavailable`."""
        return self._entries(
            RedisCommand(self._key, (str(MAX_ENTRIES), str(MAX_ENTRY_BYTES)), script=_LIST)
        )

    def remove(self, entry: bytes) -> None:
        """Give up the lease of an entry. Raises `IndexUnavailable`."""
        self._ask(RedisCommand(self._key, ("ZREM", self._key, entry), writes=True))

    # Values lie in the slot of the set, if its name has a hash tag.

    def put_value(self, name: str, value: bytes, lease_s: float) -> None:
        """Keep a value beside the set for `lease_s`. Raises `IndexUnavailable`."""
        key = self._value_key(name)
        self._ask(RedisCommand(key, ("SET", key, value, "PX", _ms(lease_s)), writes=True))

    def renew_value(self, name: str, lease_s: float) -> bool:
        """Keep a value for `lease_s` from now on; return whether it is still there."""
        key = self._value_key(name)
        reply = self._ask(RedisCommand(key, ("PEXPIRE", key, _ms(lease_s)), writes=True))
        return bool(reply == 1)

    def value(self, name: str) -> bytes | None:
        """Return a value; None if it has expired. Raises `IndexUnavailable`."""
        key = self._value_key(name)
        found = self._ask(RedisCommand(key, ("GET", key)))
        return found if isinstance(found, bytes) else None

    def _value_key(self, name: str) -> bytes:
        return self._key + b":" + name.encode()

    def close(self) -> None:
        """Close the connections."""
        self._pools.close()

    def _entries(self, command: RedisCommand) -> list[bytes]:
        reply = self._ask(command)
        if not isinstance(reply, list) or not all(isinstance(entry, bytes) for entry in reply):
            raise IndexUnavailable(f"index {self}: the server sent an answer of an unknown form")
        return reply

    def _ask(self, command: RedisCommand) -> Reply:
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


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

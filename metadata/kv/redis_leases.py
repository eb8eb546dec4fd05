"""A set of leases in Redis: the entries renewed lately, by the clock of the server that keeps them.

It works on one server or in a cluster. There is one sorted set a name and one script a renewal,
which drops expired entries. The set may be lost: each live holder renews, and the set is restored.
A holder may keep larger values beside the set, which expire too. A call asks once, with short
timeouts; its caller renews, and so repeats it, anyway.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from metadata.kv.redis_pipeline import RedisCommand, Script
from metadata.kv.redis_slot import RedisSlot

MAX_ENTRIES: Final = 1024
MAX_ENTRY_BYTES: Final = 2048
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
        self._slot = RedisSlot(url, self._key)

    def __str__(self) -> str:
        return str(self._slot)

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
        reply = self._slot.ask(RedisCommand(self._key, arguments, script=_PUT, writes=True))
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
        self._slot.ask(RedisCommand(self._key, ("ZREM", self._key, entry), writes=True))

    # Values lie in the slot of the set, if its name has a hash tag.

    def put_value(self, name: str, value: bytes, lease_s: float) -> None:
        """Keep a value beside the set for `lease_s`. Raises `IndexUnavailable`."""
        key = self._value_key(name)
        self._slot.ask(RedisCommand(key, ("SET", key, value, "PX", _ms(lease_s)), writes=True))

    def renew_value(self, name: str, lease_s: float) -> bool:
        """Keep a value for `lease_s` from now on; return whether it is still there."""
        key = self._value_key(name)
        reply = self._slot.ask(RedisCommand(key, ("PEXPIRE", key, _ms(lease_s)), writes=True))
        return bool(reply == 1)

    def value(self, name: str) -> bytes | None:
        """Return a value; None if it has expired. Raises `IndexUnavailable`."""
        key = self._value_key(name)
        found = self._slot.ask(RedisCommand(key, ("GET", key)))
        return found if isinstance(found, bytes) else None

    def _value_key(self, name: str) -> bytes:
        return self._key + b":" + name.encode()

    def close(self) -> None:
        """Close the connections."""
        self._slot.close()

    def _entries(self, command: RedisCommand) -> list[bytes]:
        reply = self._slot.ask(command)
        if not isinstance(reply, list) or not all(isinstance(entry, bytes) for entry in reply):
            raise self._slot.strange()
        return reply


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

"""A board in Redis: records with stamps, leases in groups, and a leader, all in one slot.

Stamps and leases go by the clock of the server. A renewal of a lease is one round trip, which
returns the group's leases and some records. The board may be lost: each live holder renews its
lease, and the *life* that answers then is another one. It knows how long it has been heard of
without a break, so a caller can tell when all holders that live have renewed. A call asks once,
with short timeouts (`RedisSlot`), so it takes about 2 s at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.kv.redis_pipeline import RedisCommand, Reply, Script
from metadata.kv.redis_slot import RedisSlot

LONGEST_BREAK_S: Final = 3.0
"""Holders renew about once a second. A board that nobody asked for this long was away."""
_SCAN_BATCH: Final = 4096

_STATE: Final = "board_state.lua"
_RENEW: Final = Script(_STATE, "renew_grouped_lease.lua")
_LEASES: Final = Script(_STATE, "list_grouped_leases.lua")
_WITHDRAW: Final = Script("withdraw_grouped_lease.lua")
_PUT: Final = Script(_STATE, "put_stamped.lua")
_RECORDS: Final = Script(_STATE, "list_stamped.lua")
_LEAD: Final = Script(_STATE, "lead_lease.lua")
_RESIGN: Final = Script("remove_equal.lua")
_BREAK_US: Final = str(int(LONGEST_BREAK_S * 1e6))


@dataclass(frozen=True, slots=True)
class BoardKeys:
    """The keys of a board; they have one hash tag."""

    state: bytes
    leader: bytes
    leases: bytes
    """The hash holder -> its lease."""
    ends: bytes
    """The sorted set holder -> end of its lease."""


@dataclass(frozen=True, slots=True)
class BoardState:
    """The clock and the life of a board."""

    life: int
    """When the board was made: another number after it was lost."""
    since: int
    """When it was first asked without a long break until now."""
    awake_s: float
    """The seconds since then."""
    now_us: int
    """The time by the clock of the server, µs since 1970."""
    version: int
    """The stamp of the last change that counts; 0: there was none."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The answer to a renewal."""

    state: BoardState
    has_any: bool
    """True if one of the two maps has any record."""
    records: Sequence[bytes]
    """Those of the fields that are there."""
    leases: Sequence[bytes]
    """The leases of the group, its own included; none, if they were not asked for."""


class NoRoom(Exception):
    """A bound of the board is reached."""


class RedisBoard:
    """A board, for one thread at a time. No connection is made before the first call.

    All methods raise `IndexUnavailable` after about 2 s. What is longer than `longest_bytes` is
    returned as `b""`.
    """

    def __init__(self, url: str, keys: BoardKeys, *, longest_bytes: int, ahead_s: float) -> None:
        """`url` is as in `RedisSlot`. Raise `IndexUnavailable` if it is no address of a Redis.

        Stamps that are more than `ahead_s` ahead of the clock do not count.
        """
        self._slot, self._keys = RedisSlot(url, keys.state), keys
        self._longest, self._ahead_us = str(longest_bytes), str(int(ahead_s * 1e6))

    def __str__(self) -> str:
        return str(self._slot)

    def put(
        self, key: bytes, field: str, record: tuple[bytes, bytes], most: int, *, counts: bool
    ) -> None:
        """Put a record into a map, with a stamp between the two parts.

        The stamp is the time by the server's clock, or one more than the greatest stamp. If it
        `counts`, the version becomes the same. Raises `NoRoom` if the map has `most` fields
        without this one.
        """
        self._change(key, (field, *record, str(most)), counts)

    def remove(self, key: bytes, field: str, *, counts: bool) -> None:
        """Remove a record; if it was there, and `counts`, the version changes."""
        self._change(key, (field, b"", b"", "0"), counts)

    def records(self, *keys: bytes) -> tuple[BoardState, list[list[bytes]]]:
        """Return all records of some maps, of one point in time."""
        state, *found = self._list(
            RedisCommand(
                self._keys.state, (_BREAK_US, self._longest), script=_RECORDS, more_keys=keys
            )
        )
        return self._state(state), found

    def renew(
        self,
        group: bytes,
        holder: str,
        lease: bytes,
        lease_s: float,
        *,
        most: tuple[int, int],
        maps: tuple[bytes, bytes],
        fields: Sequence[str],
        with_leases: bool,
    ) -> Renewed:
        """Put or renew the lease of a holder, which is in the group with this key.

        `most` bounds the leases of a group and of all; raises `NoRoom`. The fields are of the first
        one of the maps.
        """
        keys = self._keys
        bounds = (_ms(lease_s), *map(str, most), _BREAK_US)
        told = ("1" if with_leases else "0", self._longest, *fields)
        command = RedisCommand(
            group,
            (holder, lease, *bounds, *told),
            script=_RENEW,
            more_keys=(keys.ends, keys.leases, keys.state, *maps),
            writes=True,
        )
        reply = self._slot.ask(command)
        if isinstance(reply, int):
            raise NoRoom
        state, has_any, records, leases = reply
        found = [record for record in records if record is not None]
        return Renewed(self._state(state), has_any == 1, found, leases)

    def leases(self) -> Iterator[list[bytes]]:
        """Yield the leases of all groups in batches; one may come twice."""
        cursor = b"0"
        while True:
            cursor, found = self._list(
                RedisCommand(
                    self._keys.leases,
                    (cursor, str(_SCAN_BATCH), self._longest),
                    script=_LEASES,
                    more_keys=(self._keys.ends,),
                )
            )
            yield found
            if cursor == b"0":
                return

    def withdraw(self, group: bytes, holder: str) -> None:
        """Give up the lease of a holder."""
        more = (self._keys.ends, self._keys.leases)
        self._slot.ask(
            RedisCommand(group, (holder,), script=_WITHDRAW, more_keys=more, writes=True)
        )

    def lead(self, id: str, lease_s: float) -> str:
        """Lead for `lease_s`, or renew that, unless another one leads; return the leader's id."""
        reply = self._slot.ask(
            RedisCommand(
                self._keys.leader,
                (id, _ms(lease_s), _BREAK_US),
                script=_LEAD,
                more_keys=(self._keys.state,),
                writes=True,
            )
        )
        if not isinstance(reply, bytes):
            raise self._slot.strange()
        return reply.decode(errors="replace")

    def resign(self, id: str) -> None:
        """Lead no longer."""
        self._slot.ask(RedisCommand(self._keys.leader, ("id", id), script=_RESIGN, writes=True))

    def close(self) -> None:
        """Close the connections."""
        self._slot.close()

    def _change(self, key: bytes, arguments: tuple[bytes | str, ...], counts: bool) -> None:
        all_arguments = (*arguments, self._ahead_us, "1" if counts else "0")
        command = RedisCommand(
            key, all_arguments, script=_PUT, more_keys=(self._keys.state,), writes=True
        )
        if self._slot.ask(command) == 0:
            raise NoRoom

    def _list(self, command: RedisCommand) -> list[Reply]:
        reply = self._slot.ask(command)
        if not isinstance(reply, list):
            raise self._slot.strange()
        return reply

    def _state(self, reply: Reply) -> BoardState:
        try:
            life, since, awake, now, version = map(int, reply)
        except (TypeError, ValueError):
            raise self._slot.strange() from None
        return BoardState(life, since, awake / 1e6, now, version)


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

"""What is known of the histories of Redis servers: which writes a replica has too, and which a server has forgotten.

A Redis acknowledges a write before any replica has it, so a fail-over may forget it, and a server that starts again may have kept nothing.
Redis names each history of writes by a random id and counts its bytes; a promoted replica also tells where it left the history that it
followed (`INFO replication`: master_replid, master_repl_offset, master_replid2, second_repl_offset). So the answer that comes behind
each group of writes tells whether the server at this place still holds all that it held before; of one that started again, and so does not
know, the last value put there tells (`Witness`), before anything is written over the new connection. `WAIT 1` behind it makes sure, where
there is a replica, that it has them too, so that nothing is forgotten when the master dies. All of it travels in the pipeline of the writes:
no round trip of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions

from metadata.errors import IndexForgot
from metadata.kv.key_value_store import STAMP_BYTES
from metadata.kv.redis_pipeline import (
    Argument,
    Greeting,
    Pipeline,
    RedisCommand,
    Reply,
    Script,
    is_error,
)

WAIT_MS: Final = 1000
"""Below the socket timeout: an answer that is late is told apart from none. Usually it takes half a millisecond."""
LATE_WAIT_MS: Final = 50
"""Once a replica was late, until it is in time again: a put goes on at nearly its pace. And where it is not known yet whether there is one."""
_WARNING_PAUSE_S: Final = 60.0
_NO_HISTORY: Final = "0" * 40
_NO_ANSWER: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
_INFO: Final = RedisCommand(b"", ("INFO", "replication"))
PUT: Final = Script("put_newer.lua")

log = logging.getLogger(__name__)

Place = Hashable
"""Where a server serves: the only one there is, or the first slot that it serves; stays when another server takes over."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a server is, in which history."""

    history: str
    offset: int
    former_history: str
    former_end: int
    """Up to where the server holds `former_history`."""
    replicas: int
    """That follow at present."""

    @classmethod
    def parse(cls, info: bytes) -> Position:
        """From what INFO replication answers; raises `KeyError` or `ValueError` where it does not say, or is no master's."""
        lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
        fields = {name: value.strip() for name, _, value in lines}
        if fields["role"] != "master":
            raise ValueError("a replica: what was sent to it goes to its master again")
        online = [name for name, value in fields.items() if _is_replica(name, value)]
        return cls(
            fields["master_replid"],
            int(fields["master_repl_offset"]),
            fields["master_replid2"],
            int(fields["second_repl_offset"]) - 1,
            len(online),
        )

    def holds(self, earlier: Position) -> bool:
        """Whether nothing is missing of what a server held at `earlier`."""
        return self.history == earlier.history or (
            self.follows(earlier) and self.former_end >= earlier.offset
        )

    def follows(self, earlier: Position) -> bool:
        """Whether the server tells where it left that history, as a promoted replica does; one that started again may not know."""
        return self.former_history == earlier.history != _NO_HISTORY


def _is_replica(name: str, value: str) -> bool:
    return name.startswith("slave") and name[5:].isdigit() and "state=online" in value


@dataclass(frozen=True, slots=True)
class Witness:
    """The last value that was put at a place: if it is there, so is all that was put before."""

    key: bytes
    field: Argument
    stamp: bytes

    def is_shown_by(self, reply: Reply) -> bool:
        return isinstance(reply, bytes) and reply[:STAMP_BYTES] >= self.stamp


@dataclass(frozen=True, slots=True)
class Envelope:
    """Commands for one server, and what is asked of it besides."""

    place: Place
    commands: Sequence[RedisCommand]
    behind: Sequence[RedisCommand] = ()
    witness: Witness | None = None

    @property
    def writes(self) -> bool:
        return any(command.writes for command in self.commands)

    @property
    def greeting(self) -> list[RedisCommand]:
        """What a server is asked over a new connection before anything is written to it: it may have started again, or be another."""
        if not self.writes:
            return []
        return [_INFO] if self.witness is None else [_INFO, _looked_for(self.witness)]

    def all(self) -> list[RedisCommand]:
        return [*self.commands, *self.behind]


def _looked_for(witness: Witness) -> RedisCommand:
    return RedisCommand(witness.key, ("HGET", witness.key, witness.field))


def _last_put(commands: Sequence[RedisCommand], replies: Sequence[Reply]) -> Witness | None:
    """Of a command that put all it was given: (limit, marker, fields, values), see `put_newer.lua`."""
    for command, reply in zip(reversed(commands), reversed(replies), strict=True):
        if command.writes and command.script is PUT and reply == []:
            count = (len(command.arguments) - 2) // 2
            value = command.arguments[-1]
            assert isinstance(value, bytes)
            return Witness(command.key, command.arguments[1 + count], value[:STAMP_BYTES])
    return None


class Replication:
    """Of all servers that one store writes to. Without locks: a store may be used on both sides of a fork."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._positions: dict[Place, Position] = {}
        self._replicas: dict[Place, int] = {}
        self._late: set[Place] = set()
        self._witnesses: dict[Place, Witness] = {}
        self._next_warning = 0.0
        self.losses = 0
        """How many times a server was met that lacks what one at its place had acknowledged."""
        self.losses_without_end = 0
        """Those of which nobody knows how much: it started again, and not with all."""

    @property
    def is_confirmed(self) -> bool:
        """Every write that was acknowledged is on a replica too, where there was one."""
        return not self._late

    def envelope(self, place: Place, commands: Sequence[RedisCommand]) -> Envelope:
        """What to send with these commands to the server at `place`."""
        if not any(command.writes for command in commands):
            met = place in self._positions
            return Envelope(place, commands, () if met else (_INFO,))
        behind = [_INFO]
        replicas = self._replicas.get(place)
        if replicas != 0:
            wait_ms = LATE_WAIT_MS if replicas is None or place in self._late else WAIT_MS
            behind.append(RedisCommand(b"", ("WAIT", "1", str(wait_ms))))
        return Envelope(place, commands, tuple(behind), self._witnesses.get(place))

    def pipeline(self, pool: Any, envelope: Envelope) -> Pipeline:
        """The envelope on its way."""
        greeting = Greeting(envelope.greeting, lambda replies: self.meet(envelope, replies))
        return Pipeline(pool, envelope.all(), greeting)

    def meet(self, envelope: Envelope, replies: Sequence[Reply]) -> None:
        """Heed what a server says to the greeting; raises `IndexForgot`, and nothing is written, if it lacks what it should have."""
        losses = self.losses
        kept = envelope.witness is not None and envelope.witness.is_shown_by(replies[-1])
        self._learn(envelope.place, replies[0], kept)
        self.check(losses)

    def open(self, envelope: Envelope, replies: Sequence[Reply]) -> list[Reply]:
        """The replies to the commands themselves; errors for all of them if the connection ended before a replica had the writes."""
        own, added = list(replies[: len(envelope.commands)]), replies[len(envelope.commands) :]
        lost = [reply for reply in added if isinstance(reply, _NO_ANSWER)]
        if lost:
            return [reply if is_error(reply) else lost[0] for reply in own]
        place = envelope.place
        if added:
            self._learn(place, added[0], kept=False)
        if len(added) > 1 and self._replicas.get(place):
            self._confirm(place, added[1])
        if (last := _last_put(envelope.commands, own)) is not None:
            self._witnesses[place] = last
        return own

    def check(self, losses: int) -> None:
        """`IndexForgot` if more than these were seen: what follows would promise what is gone."""
        if self.losses != losses:
            raise IndexForgot(
                f"index {self._shown}: a server has forgotten recent records; `dlcmd recover` puts them right"
            )

    def _learn(self, place: Place, reply: Reply, kept: bool) -> None:
        try:
            position = Position.parse(reply)
        except (AttributeError, KeyError, ValueError):  # an older or foreign server, or an error
            return
        earlier = self._positions.get(place)
        self._positions[place] = position
        had_replicas = self._replicas.get(place)
        self._replicas[place] = position.replicas
        if had_replicas and not position.replicas:
            self._not_confirmed(place)
        if earlier is None or position.holds(earlier):
            return
        if position.follows(earlier):
            self.losses += 1
        elif not kept:
            self.losses += 1
            self.losses_without_end += 1
        else:
            return
        self._late.discard(place)
        log.warning(
            "index %s: a server has forgotten what it or the one before it had acknowledged",
            self._shown,
        )

    def _confirm(self, place: Place, reply: Reply) -> None:
        if isinstance(reply, int) and reply >= 1:
            self._late.discard(place)
        else:
            self._not_confirmed(place)

    def _not_confirmed(self, place: Place) -> None:
        self._late.add(place)
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_PAUSE_S
            log.warning(
                "index %s: a replica is late or gone: entries put meanwhile may be lost in a fail-over; "
                "if one happens, `dlcmd recover --since` puts them right",
                self._shown,
            )

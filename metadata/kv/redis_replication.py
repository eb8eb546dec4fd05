"""The histories of Redis servers: the writes that a replica has too, and those that a server lost.

A Redis acknowledges a write before any replica has it, so a fail-over may lose it, and a server
that restarts may have kept nothing. Redis names each history of writes by a random id and counts
its bytes; a promoted replica also reports where it left the history that it followed (`INFO
replication`: master_replid, master_repl_offset, master_replid2, second_repl_offset). So the answer
behind each group of writes shows whether the server at this place still holds all that it held
before. A server that restarted does not know; then the last value put there decides (`Witness`),
before anything is written over the new connection. `WAIT 1` behind the writes makes sure that a
replica, if there is one, has them too, so that nothing is lost when the master dies. All of this
travels in the pipeline of the writes and needs no round trip of its own.
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
"""The wait for a replica, usually half a millisecond.

It is below the socket timeout, so that a late answer differs from none.
"""
LATE_WAIT_MS: Final = 50
"""The wait after a replica was late, until it is in time again.

A put then runs at nearly full speed. It is also the wait while it is unknown whether there is a
replica.
"""
_WARNING_PAUSE_S: Final = 60.0
_NO_HISTORY: Final = "0" * 40
_NO_ANSWER: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
_INFO: Final = RedisCommand(b"", ("INFO", "replication"))
PUT: Final = Script("put_newer.lua")

log = logging.getLogger(__name__)

Place = Hashable
"""The position of a server: the only one there is, or the first slot that it serves.

It stays the same when another server takes over.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a server in its history of writes."""

    history: str
    offset: int
    former_history: str
    former_end: int
    """The offset up to which the server holds `former_history`."""
    replicas: int
    """The replicas that follow at present."""

    @classmethod
    def parse(cls, info: bytes) -> Position:
        """Return the position in an answer to INFO replication.

        Raises `KeyError` or `ValueError` if the answer lacks it, or is not a master's.
        """
        lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
        fields = {name: value.strip() for name, _, value in lines}
        if fields["role"] != "master":
            raise ValueError("the server is a replica: its master gets the commands again")
        online = [name for name, value in fields.items() if _is_replica(name, value)]
        return cls(
            fields["master_replid"],
            int(fields["master_repl_offset"]),
            fields["master_replid2"],
            int(fields["second_repl_offset"]) - 1,
            len(online),
        )

    def holds(self, earlier: Position) -> bool:
        """Return whether the server still has all that a server held at `earlier`."""
        return self.history == earlier.history or (
            self.follows(earlier) and self.former_end >= earlier.offset
        )

    def follows(self, earlier: Position) -> bool:
        """Return whether the server reports where it left that history, as a promoted replica does.

        A server that restarted may not know.
        """
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
        """Return whether the reply is the witness's value or a newer one."""
        return isinstance(reply, bytes) and reply[:STAMP_BYTES] >= self.stamp


@dataclass(frozen=True, slots=True)
class Envelope:
    """Commands for one server, and the commands that the store adds to them."""

    place: Place
    commands: Sequence[RedisCommand]
    behind: Sequence[RedisCommand] = ()
    witness: Witness | None = None

    @property
    def writes(self) -> bool:
        """True if at least one of the commands writes."""
        return any(command.writes for command in self.commands)

    @property
    def greeting(self) -> list[RedisCommand]:
        """The commands to send over a new connection before anything is written to it.

        The server may have restarted, or be another one.
        """
        if not self.writes:
            return []
        return [_INFO] if self.witness is None else [_INFO, _looked_for(self.witness)]

    def all(self) -> list[RedisCommand]:
        """Return the commands and those behind them."""
        return [*self.commands, *self.behind]


def _looked_for(witness: Witness) -> RedisCommand:
    return RedisCommand(witness.key, ("HGET", witness.key, witness.field))


def _last_put(commands: Sequence[RedisCommand], replies: Sequence[Reply]) -> Witness | None:
    """Return the witness of the last command that put everything it was given, None if none did.

    Its arguments are (limit, marker, fields, values), see `put_newer.lua`.
    """
    for command, reply in zip(reversed(commands), reversed(replies), strict=True):
        if command.writes and command.script is PUT and reply == []:
            count = (len(command.arguments) - 2) // 2
            value = command.arguments[-1]
            assert isinstance(value, bytes)
            return Witness(command.key, command.arguments[1 + count], value[:STAMP_BYTES])
    return None


class Replication:
    """The replication state of all servers that one store writes to.

    It has no locks: a store may be used on both sides of a fork.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._positions: dict[Place, Position] = {}
        self._late: set[Place] = set()
        self._witnesses: dict[Place, Witness] = {}
        self._next_warning = 0.0
        self.losses = 0
        """The number of servers met that lack what one at their place had acknowledged."""
        self.losses_without_end = 0
        """The losses of unknown extent among them: a server restarted, and not with everything."""

    @property
    def is_confirmed(self) -> bool:
        """True if every acknowledged write is on a replica too, where there was one."""
        return not self._late

    def envelope(self, place: Place, commands: Sequence[RedisCommand]) -> Envelope:
        """Return the envelope to send with these commands to the server at `place`."""
        met = self._positions.get(place)
        if not any(command.writes for command in commands):
            return Envelope(place, commands, () if met else (_INFO,))
        behind = [_INFO]
        if met is None or met.replicas:
            wait_ms = LATE_WAIT_MS if met is None or place in self._late else WAIT_MS
            behind.append(RedisCommand(b"", ("WAIT", "1", str(wait_ms))))
        return Envelope(place, commands, tuple(behind), self._witnesses.get(place))

    def pipeline(self, pool: Any, envelope: Envelope) -> Pipeline:
        """Return the pipeline that sends the envelope."""
        greeting = Greeting(envelope.greeting, lambda replies: self.meet(envelope, replies))
        return Pipeline(pool, envelope.all(), greeting)

    def meet(self, envelope: Envelope, replies: Sequence[Reply]) -> None:
        """Evaluate a server's answers to the greeting.

        Raises `IndexForgot`, and nothing is written, if it lacks what it should have.
        """
        losses = self.losses
        kept = envelope.witness is not None and envelope.witness.is_shown_by(replies[-1])
        self._learn(envelope.place, replies[0], kept)
        self.check(losses)

    def open(self, envelope: Envelope, replies: Sequence[Reply]) -> list[Reply]:
        """Return the replies to the commands themselves.

        If the connection ended before a replica had the writes, they are errors for all commands.
        """
        own, added = list(replies[: len(envelope.commands)]), replies[len(envelope.commands) :]
        lost = [reply for reply in added if isinstance(reply, _NO_ANSWER)]
        if lost:
            return [reply if is_error(reply) else lost[0] for reply in own]
        place = envelope.place
        if added:
            self._learn(place, added[0], kept=False)
        met = self._positions.get(place)
        if len(added) > 1 and met is not None and met.replicas:
            self._confirm(place, added[1])
        if (last := _last_put(envelope.commands, own)) is not None:
            self._witnesses[place] = last
        return own

    def check(self, losses: int) -> None:
        """Raise `IndexForgot` if more than `losses` were seen.

        Puts that follow would rely on records that are lost.
        """
        if self.losses != losses:
            raise IndexForgot(
                f"index {self._shown}: a server lost recent records; repair it with `dlcmd recover`"
            )

    def _learn(self, place: Place, reply: Reply, kept: bool) -> None:
        try:
            position = Position.parse(reply)
        except (AttributeError, KeyError, ValueError):  # an older or foreign server, or an error
            return
        earlier = self._positions.get(place)
        self._positions[place] = position
        if earlier is None:
            return
        if earlier.replicas and not position.replicas:
            self._not_confirmed(place)
        if position.holds(earlier):
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
            "index %s: a server lost records that it or its predecessor had acknowledged",
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
                "index %s: a replica is late or has left: a fail-over may lose entries that are "
                "put meanwhile; if one happens, `dlcmd recover --since` repairs the index",
                self._shown,
            )

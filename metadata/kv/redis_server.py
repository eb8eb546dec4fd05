"""The key-value store in one Redis server, shared by the nodes of a small cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from redis import exceptions

from metadata.errors import IndexUnavailable
from metadata.kv.redis_maps import SPLIT_ABOVE, RedisMaps
from metadata.kv.redis_pipeline import (
    Pools,
    RedisCommand,
    RedisUrl,
    Reply,
    advice,
    exchange,
    is_error,
)

PATIENCE_S: Final = 15.0
"""The time for which commands are repeated.

It bridges a restart with a large database to load (docs/decisions/0010). A call takes at most this
and two socket timeouts, unless the server answers.
"""
_TRANSIENT: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
_FINAL: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_PLACE: Final = None
"""The place of the only server."""


class RedisServerStore(RedisMaps):
    """A `KeyValueStore` in one Redis server; it may be used on both sides of a fork.

    `url` is as in `RedisUrl`.
    """

    def __init__(
        self, url: str, *, split_above: int = SPLIT_ABOVE, patience_s: float = PATIENCE_S
    ) -> None:
        where = RedisUrl(url)
        super().__init__(str(where), split_above, patience_s)
        self._pools = Pools(where)
        [reply] = self._round([RedisCommand(b"", ("PING",))])
        if is_error(reply):
            raise IndexUnavailable(f"index {where}: {advice(reply)}") from reply

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._pools.close()

    def _round(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        envelope = self._replication.envelope(_PLACE, commands)
        [replies] = exchange([self._replication.pipeline(self._pools.pool(), envelope)])
        return self._replication.open(envelope, replies)

    def _retry(self, command: RedisCommand, error: exceptions.RedisError) -> RedisCommand | None:
        if isinstance(error, _TRANSIENT) and not isinstance(error, _FINAL):
            return replace(command, by_text=False)
        return None

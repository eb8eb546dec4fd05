"""The key-value store in one Redis server, shared by the nodes of a small cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metadata.kv.evictions import Evictions
from metadata.kv.redis_eviction import CONFIGURED, QUESTIONS, read_answers, warn
from metadata.kv.redis_maps import PATIENCE_S, SPLIT_ABOVE, RedisMaps
from metadata.kv.redis_pipeline import RedisCommand, RedisUrl, Reply, is_error, unavailable

_PLACE: Final = None
"""The place of the only server."""


class RedisServerStore(RedisMaps):
    """A `KeyValueStore` in one Redis server; it may be used on both sides of a fork.

    `url` is as in `RedisUrl`.
    """

    def __init__(
        self, url: str, *, split_above: int = SPLIT_ABOVE, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__(RedisUrl(url), split_above, patience_s)
        reply, *answers = self._round([RedisCommand(b"", ("PING",)), *QUESTIONS])
        if is_error(reply):
            raise unavailable(self._shown, reply) from reply
        self._evictions = self._read(answers)
        warn(self._evictions, self._shown)

    def _ask_for_evictions(self) -> Evictions:
        return self._read(self._round(QUESTIONS))

    def _read(self, answers: Sequence[Reply]) -> Evictions:
        return read_answers(answers, lambda: self._round([CONFIGURED])[0], self._shown)

    def _round(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        [replies] = self._exchange([(_PLACE, None, commands)])
        return replies

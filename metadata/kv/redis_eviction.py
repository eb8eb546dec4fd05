"""The eviction policy of Redis servers, asked when an index is opened.

With `maxmemory-policy allkeys-*` a full server evicts any key to make room, a directory of the
index for instance, and answers as if it had never been there. `noeviction` refuses writes instead,
and `volatile-*` evicts only keys with a time to live, which records do not have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metadata.errors import IndexEvicts
from metadata.kv.evictions import Evictions
from metadata.kv.redis_pipeline import RedisCommand, Reply

QUESTIONS: Final = (RedisCommand(b"", ("INFO", "memory")), RedisCommand(b"", ("INFO", "stats")))
"""The commands of `read_answers`."""
CONFIGURED: Final = RedisCommand(b"", ("CONFIG", "GET", "maxmemory-policy"))
"""The command for a server whose INFO has no policy; managed servers refuse it."""
_KEEPS: Final = "noeviction"
_KEEPS_RECORDS: Final = "volatile-"

log = logging.getLogger(__name__)


def read_answers(
    replies: Sequence[Reply], configured: Callable[[], Reply], shown: str
) -> Evictions:
    """Return what one server answered to `QUESTIONS`; `shown` names the index in the log.

    `configured` returns its answer to `CONFIGURED`, and is called only if INFO has no policy.
    """
    memory, stats = replies
    policy = _field(memory, "maxmemory_policy") or _configured(configured())
    if policy is None:
        log.info("index %s: the server does not tell its maxmemory-policy", shown)
    elif policy.startswith(_KEEPS_RECORDS):
        return Evictions(None, 0)
    evicted = _field(stats, "evicted_keys") or "0"
    return Evictions(
        None if policy in (None, _KEEPS) else policy, int(evicted) if evicted.isdigit() else 0
    )


def joined(servers: Iterable[Evictions]) -> Evictions:
    """Return what several servers together may have evicted."""
    found = list(servers)
    policies = [server.policy for server in found if server.policy is not None]
    return Evictions(policies[0] if policies else None, sum(server.evicted for server in found))


def warn(evictions: Evictions, shown: str) -> None:
    """Log that the servers may evict records, if they may."""
    if evictions.policy is not None:
        log.warning(
            "index %s: the server may evict its records (maxmemory-policy %s): set noeviction "
            "there, then run `dlcmd recover`; until then the index is not written",
            shown,
            evictions.policy,
        )


def refusal(evictions: Evictions, shown: str) -> IndexEvicts:
    """Return the error of a put to servers that may evict what is put."""
    return IndexEvicts(
        f"index {shown}: its server may evict records (maxmemory-policy {evictions.policy}), so "
        "it is not written: set maxmemory-policy noeviction there, then run `dlcmd recover`"
    )


def _field(info: Reply, name: str) -> str | None:
    if not isinstance(info, bytes):
        return None
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return next((value.strip() for found, _, value in lines if found == name), None)


def _configured(reply: Reply) -> str | None:
    if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes):
        return reply[1].decode(errors="replace") or None
    return None

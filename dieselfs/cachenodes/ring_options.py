"""Which ring is read through, from what was written.

| option | variable | a profile's key |
|---|---|---|
| --ring redis, redis:NAME, [NAME@]HOST:PORT,HOST:PORT…, none | DIESELFS_RING | ring |
| --ring-secret-file PATH | DIESELFS_RING_SECRET_FILE; the secret itself: DIESELFS_RING_SECRET | ring_secret_file |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dieselfs.cachenodes.ring_peers import ring_directory
from dieselfs.cachenodes.ring_settings import DEFAULT_RING, RingOptions, RingSettings
from dieselfs.cachenodes.ring_topic import is_ring_name
from dieselfs.config import Config, Setting, load_config
from dieselfs.errors import ConfigError, UsageError
from dieselfs.peercache.peer_addresses import parse_addresses
from dieselfs.peercache.secret import RING_VARIABLE, TaskSecret, read_secret_file
from dieselfs.peercache.settings import RedisLeases, StaticPeers

_NONE: Final = "none"
_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


def ring_from_environment(
    environment: Mapping[str, str] = os.environ,
) -> RingSettings | None:
    """What the variables, or the profile that they choose, ask for; None: no ring. `UsageError`."""
    return ring_settings(RingOptions(), load_config(environment=environment), environment)


def ring_settings(
    options: RingOptions, config: Config, environment: Mapping[str, str] = os.environ
) -> RingSettings | None:
    """None if no ring is asked for. Reads the secret's file. `UsageError` says what to write."""
    text, where = options.ring, "--ring"
    if text is None and config.ring is not None:
        text, where = config.ring.value, config.ring.origin
    if text == _NONE:
        return None
    if text is None:
        if options.secret_file is not None:
            raise UsageError("--ring-secret-file without a ring", "say which: --ring")
        return None
    name, registry = _parsed(text, where, config.index)
    settings = RingSettings(name, _secret(options, config, environment), registry)
    ring_directory(
        settings
    )  # what is wrong with the address of a Redis is said now, not by the first read
    return settings


def ring_secret(
    file: str | None, config: Config, environment: Mapping[str, str] = os.environ
) -> TaskSecret:
    """`UsageError` if there is none."""
    return _secret(RingOptions(secret_file=file), config, environment)


def ring_name(text: str) -> str:
    """`UsageError` if it is none."""
    if not is_ring_name(text):
        raise UsageError(
            f"ring {text!r}: not a name",
            "use at most 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return text


def redis_of(index: Setting) -> RedisLeases | None:
    """Where the nodes of a ring meet, if the index is in a Redis."""
    is_redis = index.value.partition("://")[0] in _REDIS
    return RedisLeases(index.value) if is_redis else None


def _parsed(text: str, where: str, index: Setting) -> tuple[str, RedisLeases | StaticPeers]:
    scheme, _, name = text.partition(":")
    if scheme == "redis":
        leases = redis_of(index)
        if leases is None:
            raise ConfigError(
                f"{where} {text}: the nodes of a ring meet in the Redis of the index, and it is {index}",
                "set DIESELFS_INDEX to redis://HOST:PORT/DB, or write the list of the nodes, HOST:PORT,HOST:PORT…",
            )
        return ring_name(name or DEFAULT_RING), leases
    name, separator, addresses = text.rpartition("@")
    found = StaticPeers(parse_addresses(addresses, where))
    return ring_name(name) if separator else DEFAULT_RING, found


def _secret(options: RingOptions, config: Config, environment: Mapping[str, str]) -> TaskSecret:
    file = None if options.secret_file is None else Path(options.secret_file)
    found = TaskSecret.load(environment, file, RING_VARIABLE)
    if found is None and config.ring_secret_file is not None:
        found = read_secret_file(Path(config.ring_secret_file.value))
    if found is None:
        raise UsageError(
            "a ring needs a secret that its nodes and who reads through them prove to each other",
            f"make one with `dlcmd task secret FILE`, copy the file to all of them, and give --ring-secret-file FILE ({RING_VARIABLE}_FILE, or the secret itself in {RING_VARIABLE})",
        )
    return found

"""The cache cluster to read through, according to options, variables and a profile.

| option | variable | a profile's key |
|---|---|---|
| --cache-cluster CLUSTER | DIESELFS_CACHE_CLUSTER | cache_cluster |
| --cache-cluster-secret-file | DIESELFS_CACHE_CLUSTER_SECRET_FILE | cache_cluster_secret_file |

CLUSTER is `redis`, `redis:NAME`, `[NAME@]HOST:PORT,HOST:PORT…` or `none`. The variable
DIESELFS_CACHE_CLUSTER_SECRET holds the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dieselfs.cache.cluster.peers import cluster_registry
from dieselfs.cache.cluster.settings import (
    DEFAULT_CLUSTER,
    CacheClusterOptions,
    CacheClusterSettings,
)
from dieselfs.cache.cluster.topic import is_cluster_name
from dieselfs.cache.membership.peer_addresses import parse_addresses
from dieselfs.cache.ports.peer_settings import RedisLeases, StaticPeers
from dieselfs.cache.ports.secret import CLUSTER_SECRET_VARIABLE, TaskSecret, read_secret_file
from dieselfs.config import Config, Setting, load_config
from dieselfs.errors import ConfigError, UsageError

_NONE: Final = "none"
_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


def configured_cluster(
    config: Config | None = None, environment: Mapping[str, str] = os.environ
) -> CacheClusterSettings | None:
    """Return the cache cluster of the configuration; None: no cluster.

    Without `config` variables and the profile that they choose count. Raises `UsageError`.
    """
    config = config or load_config(environment=environment)
    return cache_cluster_settings(CacheClusterOptions(), config, environment)


def cache_cluster_settings(
    options: CacheClusterOptions, config: Config, environment: Mapping[str, str] = os.environ
) -> CacheClusterSettings | None:
    """Return the requested cache cluster, or None. Read the file of its secret.

    Raises `UsageError` that says what to write.
    """
    text, where = options.cache_cluster, "--cache-cluster"
    if text is None and config.cache_cluster is not None:
        text, where = config.cache_cluster.value, config.cache_cluster.origin
    if text == _NONE:
        return None
    if text is None:
        if options.secret_file is not None:
            raise UsageError(
                "--cache-cluster-secret-file needs a cache cluster",
                "name the cache cluster with --cache-cluster",
            )
        return None
    name, registry = _parsed(text, where, config.index)
    settings = CacheClusterSettings(name, _secret(options, config, environment), registry)
    # Report a wrong address of a Redis now, not at the first read.
    cluster_registry(settings)
    return settings


def cluster_secret(
    file: str | None, config: Config, environment: Mapping[str, str] = os.environ
) -> TaskSecret:
    """Return the secret of a cache cluster. Raises `UsageError` if there is none."""
    return _secret(CacheClusterOptions(secret_file=file), config, environment)


def cluster_name(text: str) -> str:
    """Return the name of a cache cluster. Raises `UsageError` if it is invalid."""
    if not is_cluster_name(text):
        raise UsageError(
            f"cache cluster {text!r}: this is not a name",
            "use at most 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return text


def redis_of(index: Setting) -> RedisLeases | None:
    """Return the Redis in which the nodes of a cache cluster meet, if the index is in a Redis."""
    is_redis = index.value.partition("://")[0] in _REDIS
    return RedisLeases(index.value) if is_redis else None


def _parsed(text: str, where: str, index: Setting) -> tuple[str, RedisLeases | StaticPeers]:
    scheme, _, name = text.partition(":")
    if scheme == "redis":
        leases = redis_of(index)
        if leases is None:
            raise ConfigError(
                f"{where} {text}: cache nodes find each other in the Redis of the index, and the "
                f"index is {index}",
                "set DIESELFS_INDEX to redis://HOST:PORT/DB, or write the list of the nodes,"
                " HOST:PORT,HOST:PORT…",
            )
        return cluster_name(name or DEFAULT_CLUSTER), leases
    name, separator, addresses = text.rpartition("@")
    found = StaticPeers(parse_addresses(addresses, where))
    return cluster_name(name) if separator else DEFAULT_CLUSTER, found


def _secret(
    options: CacheClusterOptions, config: Config, environment: Mapping[str, str]
) -> TaskSecret:
    file = None if options.secret_file is None else Path(options.secret_file)
    found = TaskSecret.load(environment, file, CLUSTER_SECRET_VARIABLE)
    if found is None and config.cache_cluster_secret_file is not None:
        found = read_secret_file(Path(config.cache_cluster_secret_file.value))
    if found is None:
        raise UsageError(
            "a cache cluster needs a secret that its nodes and clients prove to each other",
            "make one with `dlcmd task secret FILE`, copy the file to all nodes and clients, "
            f"and give --cache-cluster-secret-file FILE ({CLUSTER_SECRET_VARIABLE}_FILE, or "
            f"the secret itself in {CLUSTER_SECRET_VARIABLE})",
        )
    return found

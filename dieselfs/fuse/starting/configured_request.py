"""A mount's request, completed from the configuration: variables, profile, dataset and store.

The request then names all that the mount depends on. So the daemon needs no settings of the store,
and the server that follows a crash or a refresh has the same as the first one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from dieselfs.assembly import configured_patience_s
from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.ports.secret import CLUSTER_SECRET_VARIABLE
from dieselfs.config import Config, Setting, former_names
from dieselfs.errors import ConfigError, UsageError
from dieselfs.fuse.starting.mount_request import MountRequest
from dieselfs.fuse.starting.mount_settings import requested_job

if TYPE_CHECKING:
    from dieselfs.cache.node.block_eviction import PolicyName


def configured_request(config: Config, request: MountRequest) -> MountRequest:
    """Return the request with the configured values of the options that it leaves open.

    Raises `ConfigError` or `UsageError` for a value that makes no sense.
    """
    from dieselfs.cache.cached_datasets import cached_datasets
    from dieselfs.cache.ssd.options import POLICY_KEYS
    from dieselfs.cache.ssd.settings import configured, is_yes, size_of

    ssd = (
        config.ssd,
        config.ssd_size,
        config.ssd_admission,
        config.ssd_eviction,
        config.ssd_warmup,
        *(getattr(config, key) for key in POLICY_KEYS),
    )
    # What is wrong is refused here, where a user watches.
    requested_job(config, request)
    cached_datasets(request.cache_datasets, config)
    refresh, eviction = request.refresh, request.eviction
    if refresh is None and config.refresh is not None:
        refresh = is_yes(config.refresh)
    if eviction is None and config.eviction is not None:
        eviction = _policy(config.eviction)
    return replace(
        request,
        refresh=refresh,
        eviction=eviction,
        patience_s=request.patience_s or configured_patience_s(config),
        memory_bytes=_budget(_first(request.memory_bytes, size_of(config.memory))),
        prefill_bytes=_first(request.prefill_bytes, size_of(config.prefill)),
        # The daemon finds the variables and the profile itself.
        ssd=request.ssd.otherwise(configured(config)) if any(map(_stored, ssd)) else request.ssd,
        cache_cluster=_cluster(config, request.cache_cluster),
        cache_datasets=(
            _stored(config.cache_datasets)
            if request.cache_datasets is None
            else request.cache_datasets
        ),
    )


def _cluster(config: Config, given: CacheClusterOptions) -> CacheClusterOptions:
    name = given.cache_cluster or _stored(config.cache_cluster)
    has_secret = former_names.variable(os.environ, CLUSTER_SECRET_VARIABLE) is not None
    file = None if has_secret else _stored(config.cache_cluster_secret_file)
    if name is None and config.cache_cluster is None:
        file = None
    return CacheClusterOptions(name, given.secret_file or file)


def _stored(setting: Setting | None) -> str | None:
    """Return the value of a setting if it comes from the store."""
    return setting.value if setting is not None and setting.is_stored else None


def _first(given: int | None, configured: int | None) -> int | None:
    return configured if given is None else given


def _budget(memory_bytes: int | None) -> int | None:
    """Return the budget of node memory; raise `UsageError` for none at all."""
    if memory_bytes == 0:
        raise UsageError(
            "node memory needs a budget, and --memory is 0",
            "give it a size, or leave it out: a quarter of the free memory",
        )
    return memory_bytes


def _policy(setting: Setting) -> PolicyName:
    if setting.value == "uniform":
        return "uniform"
    if setting.value == "lru":
        return "lru"
    raise ConfigError(f"eviction {setting}: this is not a policy", "write uniform or lru")

"""The keys of the configuration, and the variables of the environment that give them."""

from __future__ import annotations

from typing import Final

_SSD_KEYS: Final = (
    *("ssd", "ssd_size", "ssd_admission", "ssd_eviction", "ssd_warmup"),
    *("ssd_policy", "ssd_shadow_policy", "ssd_write_budget", "ssd_buckets"),
)
_TRACE_KEYS: Final = ("record_trace", "record_trace_size")
_MOUNT_KEYS: Final = ("patience", "refresh", "memory", "eviction", "prefill")
PLACE_KEYS: Final = ("store", "index", "snapshots")
"""Keys that have an embedded default."""
SHARED_KEYS: Final = (
    *("index", "cache_cluster", "cache_cluster_secret_file", "cache_datasets"),
    *_SSD_KEYS,
    *_MOUNT_KEYS,
)
"""The keys that may be set in the store, for all of its nodes."""
WITHOUT_DEFAULT: Final = ("index_login", "job", *_TRACE_KEYS, *SHARED_KEYS[1:])
"""Keys that are optional and have no default."""
VARIABLES: Final = {key: f"DIESELFS_{key.upper()}" for key in (*PLACE_KEYS, *WITHOUT_DEFAULT)}
"""Key -> variable."""
PATHS: Final = ("snapshots", "cache_cluster_secret_file", "ssd", "record_trace")
"""Keys whose values are paths: `~` is the home folder."""

"""The configuration: the object store, the index, the snapshot folder, and the SSD tier.

Each value is looked for in this order: a flag, a `DIESELFS_…` variable, the chosen profile of
`dieselfs/config.toml`, the settings in the store and the embedded default under the user's data
folder. `dieselfs.config.shared` adds those in the store where a store is opened. Every value
remembers its origin, so that an error can say which one to correct.

    # ~/.config/dieselfs/config.toml
    profile = "cluster"                 # used when neither --profile nor DIESELFS_PROFILE names one

    [profiles.cluster]
    store = "file:///mnt/shared/dieselfs"
    index = "redis+cluster://node1:7000,node2:7000"
    snapshots = "/local/dieselfs/snapshots"
    cache_cluster = "redis"                      # cache nodes, if any: docs/cache-nodes.md
    cache_cluster_secret_file = "~/cluster.secret"
"""

from dieselfs.config.config_keys import SHARED_KEYS
from dieselfs.config.configuration import (
    DEFAULT_ORIGIN,
    TASK_VARIABLE,
    Config,
    Setting,
    default_config,
    load_config,
    with_stored,
    without_login,
)
from dieselfs.config.profile import config_file
from dieselfs.config.user_folders import cache_folder, state_folder

__all__ = [
    "DEFAULT_ORIGIN",
    "SHARED_KEYS",
    "TASK_VARIABLE",
    "Config",
    "Setting",
    "cache_folder",
    "config_file",
    "default_config",
    "load_config",
    "state_folder",
    "with_stored",
    "without_login",
]

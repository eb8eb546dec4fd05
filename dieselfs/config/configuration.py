"""The configuration of one command or one program, from all of its sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dieselfs.config.config_keys import PATHS, PLACE_KEYS, VARIABLES, WITHOUT_DEFAULT
from dieselfs.config.former_names import variable
from dieselfs.config.profile import ConfigProfile, read_profile
from dieselfs.config.user_folders import data_folder
from dieselfs.errors import ConfigError
from metadata.url_secrets import redacted

DEFAULT_ORIGIN: Final = "default"
TASK_VARIABLE: Final = "DIESELFS_TASK"
"""The variable that names the task whose node memory a process shares."""
_STORED: Final = "settings of "
_LOGIN_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its origin."""

    value: str
    origin: str
    """The origin for people.

    It is `--store`, `$DIESELFS_STORE`, `profile 'x' in /…/config.toml`, `settings of the store`,
    `settings of dataset 'x' in the store`, or `default`.
    """

    @property
    def is_default(self) -> bool:
        """True if no flag, variable, profile or store gave the value."""
        return self.origin == DEFAULT_ORIGIN

    @property
    def is_stored(self) -> bool:
        """True if the settings in the store gave the value."""
        return self.origin.startswith(_STORED)

    def __str__(self) -> str:
        return f"{redacted(self.value)} (from {self.origin})"

    def __repr__(self) -> str:
        return f"Setting({redacted(self.value)!r}, {self.origin!r})"


@dataclass(frozen=True, slots=True)
class Config:
    """The places of one command or one program."""

    store: Setting
    """The URL of the object store: file:///folder, memory://."""
    index: Setting
    """The URL of the key-value database.

    The forms are lmdb:///folder, redis://, rediss://, redis+cluster:// and memory://.
    """
    snapshots: Setting
    """The folder of the snapshots on this machine."""
    cache_cluster: Setting | None = None
    """The cache nodes to read through, in the form of `--cache-cluster`."""
    cache_cluster_secret_file: Setting | None = None
    cache_datasets: Setting | None = None
    """The datasets that SSDs may cache; `cache.cached_datasets` reads it."""
    ssd: Setting | None = None
    """The folder of the SSD tier. `cache.ssd.settings` reads this and the other `ssd` settings."""
    ssd_size: Setting | None = None
    ssd_admission: Setting | None = None
    ssd_eviction: Setting | None = None
    ssd_warmup: Setting | None = None
    ssd_policy: Setting | None = None
    ssd_shadow_policy: Setting | None = None
    ssd_write_budget: Setting | None = None
    ssd_buckets: Setting | None = None
    record_trace: Setting | None = None
    """The file of the trace recorder; `cache.trace_options` reads this and its size."""
    record_trace_size: Setting | None = None
    index_login: Setting | None = None
    """USER:PASSWORD for an index whose URL names no user; `index` already has it."""
    job: Setting | None = None
    """The training run for which a mount reads."""
    patience: Setting | None = None
    """The seconds that reads of a mount or a client wait for a store that does not answer."""
    refresh: Setting | None = None
    """Whether a mount makes a new snapshot if the newest is stale."""
    memory: Setting | None = None
    eviction: Setting | None = None
    prefill: Setting | None = None
    has_stored: bool = False
    """True if the settings in the store are in these already, or were looked for."""
    profile: str | None = None
    """The profile that the caller named; None: that of the environment or the file, if any."""

    @property
    def snapshot_folder(self) -> Path:
        return Path(self.snapshots.value)

    @property
    def holds_secret(self) -> bool:
        """True if a URL contains a secret, such as a password."""
        return any(redacted(place.value) != place.value for place in (self.store, self.index))


def load_config(
    store: str | None = None,
    index: str | None = None,
    profile: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Return the configuration from flags (`None`: not given), environment, profile and defaults.

    Raises `ConfigError`.
    """
    flags = {"store": store, "index": index}
    chosen = read_profile(profile, environment)
    defaults = _defaults(environment)
    found: dict[str, Any] = {
        key: _find(key, flags, environment, chosen, defaults[key]) for key in PLACE_KEYS
    }
    _refuse_visible_password(found["store"], found["index"])
    for key in WITHOUT_DEFAULT:
        found[key] = _find_setting(key, flags, environment, chosen)
    return _logged_in(Config(**found, profile=profile))


def default_config() -> Config:
    """Return the configuration of a user without flags, variables and `config.toml`."""
    defaults = _defaults(os.environ)
    places: dict[str, Any] = {key: Setting(defaults[key], DEFAULT_ORIGIN) for key in PLACE_KEYS}
    return Config(**places)


def with_stored(config: Config, layers: Iterable[tuple[Mapping[str, str], str | None]]) -> Config:
    """Return the configuration, completed from settings in the store.

    A layer has values, and the dataset whose settings they are, or None for those of the store. The
    first layer that has a value counts. Flags, variables and profile take precedence.
    """
    found: dict[str, Any] = {}
    for values, dataset in layers:
        origin = (
            f"{_STORED}{'the store' if dataset is None else f'dataset {dataset!r} in the store'}"
        )
        for key, value in values.items():
            present: Setting | None = found.get(key) or getattr(config, key)
            if present is None or present.is_default:
                found[key] = Setting(os.path.expanduser(value) if key in PATHS else value, origin)
    return _logged_in(replace(config, **found, has_stored=True))


def _logged_in(config: Config) -> Config:
    """Return the configuration with its log-in in the index's URL, if that names no user."""
    login, (scheme, separator, rest) = config.index_login, config.index.value.partition("://")
    if login is None or scheme not in _LOGIN_SCHEMES or "@" in rest:
        return config
    user, _, password = login.value.rpartition(":")
    url = f"{scheme}{separator}{quote(user, safe='')}:{quote(password, safe='')}@{rest}"
    return replace(config, index=replace(config.index, value=url))


def without_login(url: str) -> str:
    """Return the URL of an index without user and password, for which `index_login` stands in."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if scheme in _LOGIN_SCHEMES else url


def _find(
    key: str,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    profile: ConfigProfile | None,
    default: str,
) -> Setting:
    return _find_setting(key, flags, environment, profile) or Setting(default, DEFAULT_ORIGIN)


def _find_setting(
    key: str,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    profile: ConfigProfile | None,
) -> Setting | None:
    if (flag := flags.get(key)) is not None:
        return Setting(flag, f"--{key}")
    if value := variable(environment, VARIABLES[key]):
        return Setting(value, f"${VARIABLES[key]}")
    if profile and key in profile.values:
        return Setting(profile.values[key], f"profile {profile.name!r} in {profile.file}")
    return None


def _defaults(environment: Mapping[str, str]) -> dict[str, str]:
    folder = data_folder(environment)
    return {
        "store": (folder / "store").as_uri(),
        "index": (folder / "index").as_uri().replace("file:", "lmdb:", 1),
        "snapshots": str(folder / "snapshots"),
    }


def _refuse_visible_password(*settings: Setting) -> None:
    for setting in settings:
        if setting.origin.startswith("--") and redacted(setting.value) != setting.value:
            raise ConfigError(
                f"{setting.origin} {redacted(setting.value)}: a password on the command line is "
                "visible to every user",
                f"put the URL into {VARIABLES[setting.origin[2:]]} or a profile",
            )

"""The configured places: the object store, the index, the snapshot folder, and the SSD tier.

Each value is looked for in this order: a flag, a `DIESELFS_…` variable, the chosen profile of
`dieselfs/config.toml`, the settings in the store (`dieselfs.settings` adds them where a store is
opened) and the embedded default under the user's data folder. Every value remembers its origin, so
that an error can say which one to correct.

    # ~/.config/dieselfs/config.toml
    profile = "cluster"                 # used when neither --profile nor DIESELFS_PROFILE names one

    [profiles.cluster]
    store = "file:///mnt/shared/dieselfs"
    index = "redis+cluster://node1:7000,node2:7000"
    snapshots = "/local/dieselfs/snapshots"
    cache_cluster = "redis"                      # cache nodes, if any: docs/cache-nodes.md
    cache_cluster_secret_file = "~/cluster.secret"
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dieselfs.errors import ConfigError
from dieselfs.former_names import present_key, variable
from metadata.url_secrets import redacted as redacted

_SSD_KEYS: Final = (
    *("ssd", "ssd_size", "ssd_admission", "ssd_eviction", "ssd_warmup"),
    *("ssd_policy", "ssd_shadow_policy", "ssd_write_budget", "ssd_buckets"),
)
_TRACE_KEYS: Final = ("record_trace", "record_trace_size")
_MOUNT_KEYS: Final = ("patience", "refresh", "memory", "eviction", "prefill")
_KEYS: Final = ("store", "index", "snapshots")
SHARED_KEYS: Final = (
    *("index", "cache_cluster", "cache_cluster_secret_file", "cache_datasets"),
    *_SSD_KEYS,
    *_MOUNT_KEYS,
)
"""The keys that may be set in the store, for all of its nodes."""
_WITHOUT_DEFAULT: Final = ("index_login", "job", *_TRACE_KEYS, *SHARED_KEYS[1:])
"""Keys that are optional and have no default."""
_VARIABLES: Final = {key: f"DIESELFS_{key.upper()}" for key in (*_KEYS, *_WITHOUT_DEFAULT)}
_PATHS: Final = ("snapshots", "cache_cluster_secret_file", "ssd", "record_trace")
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
    chosen = _read_profile(profile, environment)
    defaults = _defaults(environment)
    found: dict[str, Any] = {
        key: _find(key, flags, environment, chosen, defaults[key]) for key in _KEYS
    }
    _refuse_visible_password(found["store"], found["index"])
    for key in _WITHOUT_DEFAULT:
        found[key] = _find_setting(key, flags, environment, chosen)
    return _logged_in(Config(**found, profile=profile))


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
                found[key] = Setting(os.path.expanduser(value) if key in _PATHS else value, origin)
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


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of embedded stores, indexes and snapshots: the XDG data folder."""
    return _xdg_folder(environment, "XDG_DATA_HOME", ".local/share")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of files that may be deleted at any time: the XDG cache folder."""
    return _xdg_folder(environment, "XDG_CACHE_HOME", ".cache")


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of `config.toml` in the XDG configuration folder."""
    return _xdg_folder(environment, "XDG_CONFIG_HOME", ".config") / "config.toml"


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    file: Path
    values: Mapping[str, str]


def _find(
    key: str,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    profile: _Profile | None,
    default: str,
) -> Setting:
    return _find_setting(key, flags, environment, profile) or Setting(default, DEFAULT_ORIGIN)


def _find_setting(
    key: str,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    profile: _Profile | None,
) -> Setting | None:
    if (flag := flags.get(key)) is not None:
        return Setting(flag, f"--{key}")
    if value := variable(environment, _VARIABLES[key]):
        return Setting(value, f"${_VARIABLES[key]}")
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


def _xdg_folder(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Return the folder that the XDG specification gives.

    A variable that is empty or not absolute counts as unset.
    """
    named = Path(environment.get(variable, ""))
    if named.is_absolute():
        return named / "dieselfs"
    return Path(environment.get("HOME") or Path.home()) / fallback / "dieselfs"


def _refuse_visible_password(*settings: Setting) -> None:
    for setting in settings:
        if setting.origin.startswith("--") and redacted(setting.value) != setting.value:
            raise ConfigError(
                f"{setting.origin} {redacted(setting.value)}: a password on the command line is "
                "visible to every user",
                f"put the URL into {_VARIABLES[setting.origin[2:]]} or a profile",
            )


def _read_profile(asked: str | None, environment: Mapping[str, str]) -> _Profile | None:
    file = config_file(environment)
    content = _read_toml(file)
    name = asked or environment.get("DIESELFS_PROFILE") or content.get("profile")
    profiles = content.get("profiles", {})
    if name is None:
        return None
    if not isinstance(profiles, dict) or not isinstance(profiles.get(name), dict):
        known = ", ".join(sorted(profiles)) if isinstance(profiles, dict) and profiles else "none"
        raise ConfigError(
            f"no profile {name!r} in {file}", f"add [profiles.{name}], or use one of: {known}"
        )
    values = _checked_values(profiles[name], f"profile {name!r} in {file}")
    if "index_login" in values or any(redacted(value) != value for value in values.values()):
        _warn_if_visible(file)
    return _Profile(str(name), file, values)


@cache
def _warn_if_visible(file: Path) -> None:
    """Log a warning, once, if all users may read a file that has a password."""
    if file.stat().st_mode & stat.S_IROTH:
        import logging

        log = logging.getLogger(__name__)
        log.warning("%s has a password, and every user can read it: chmod 600 %s", file, file)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", "make the file readable") from error
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}", "correct the file") from error


def _checked_values(table: Mapping[str, object], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for given, value in table.items():
        key = present_key(given)
        if key not in _VARIABLES:
            from difflib import get_close_matches

            near = get_close_matches(key, _VARIABLES, n=1)
            raise ConfigError(
                f"{where}: unknown key {key!r}",
                f"did you mean {near[0]}" if near else f"the keys are {', '.join(_VARIABLES)}",
            )
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is not a string", f'write {key} = "…"')
        values[key] = os.path.expanduser(value) if key in _PATHS else value
    return values

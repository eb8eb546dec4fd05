"""Profiles: the tables of the user's `config.toml` that say where data is."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dieselfs.config.config_keys import PATHS, VARIABLES
from dieselfs.config.former_names import present_key
from dieselfs.config.user_folders import config_folder
from dieselfs.errors import ConfigError
from metadata.url_secrets import redacted


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of `config.toml` in the XDG configuration folder."""
    return config_folder(environment) / "config.toml"


@dataclass(frozen=True, slots=True)
class ConfigProfile:
    """A table of keys, and where it stands."""

    name: str
    file: Path
    values: Mapping[str, str]


def read_profile(asked: str | None, environment: Mapping[str, str]) -> ConfigProfile | None:
    """Return the profile of this name; that of the environment or the file for None, if any.

    Raises `ConfigError` for an unknown profile or key, and for a file that cannot be read. Warns
    once of a password that every user can read.
    """
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
    return ConfigProfile(str(name), file, values)


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
        if not os.access(file.parent, os.X_OK):  # HOME is that of another user, as `sudo -E` has it
            return {}
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
        if key not in VARIABLES:
            from difflib import get_close_matches

            near = get_close_matches(key, VARIABLES, n=1)
            raise ConfigError(
                f"{where}: unknown key {key!r}",
                f"did you mean {near[0]}" if near else f"the keys are {', '.join(VARIABLES)}",
            )
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is not a string", f'write {key} = "…"')
        values[key] = os.path.expanduser(value) if key in PATHS else value
    return values

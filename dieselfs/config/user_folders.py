"""The folders of a user, as the XDG base directory specification gives them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_NOWHERE: Final = Path("/nonexistent")
"""The home of users that have none, as Debian names it."""


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of embedded stores, indexes and snapshots: the XDG data folder."""
    return _xdg_folder(environment, "XDG_DATA_HOME", ".local/share")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of files that may be deleted at any time: the XDG cache folder."""
    return _xdg_folder(environment, "XDG_CACHE_HOME", ".cache")


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of `config.toml`: the XDG configuration folder."""
    return _xdg_folder(environment, "XDG_CONFIG_HOME", ".config")


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of logs: the XDG state folder."""
    return _xdg_folder(environment, "XDG_STATE_HOME", ".local/state")


def _xdg_folder(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Return the folder that the XDG specification gives.

    A variable that is empty or not absolute counts as unset.
    """
    named = Path(environment.get(variable, ""))
    if named.is_absolute():
        return named / "dieselfs"
    return home_folder(environment) / fallback / "dieselfs"


def home_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's home by HOME or the user database.

    Without either, as for a container's user without a name, it is `_NOWHERE`: commands that need
    no home work, and others say which folder is missing.
    """
    named = Path(environment.get("HOME", ""))
    if not named.is_absolute():
        with suppress(KeyError):
            named = Path(pwd.getpwuid(os.getuid()).pw_dir)
    return named if named.is_absolute() else _NOWHERE

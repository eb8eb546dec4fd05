"""The folders of a user, as the XDG base directory specification gives them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of embedded stores, indexes and snapshots: the XDG data folder."""
    return _xdg_folder(environment, "XDG_DATA_HOME", ".local/share")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of files that may be deleted at any time: the XDG cache folder."""
    return _xdg_folder(environment, "XDG_CACHE_HOME", ".cache")


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of `config.toml`: the XDG configuration folder."""
    return _xdg_folder(environment, "XDG_CONFIG_HOME", ".config")


def _xdg_folder(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Return the folder that the XDG specification gives.

    A variable that is empty or not absolute counts as unset.
    """
    named = Path(environment.get(variable, ""))
    if named.is_absolute():
        return named / "dieselfs"
    return Path(environment.get("HOME") or Path.home()) / fallback / "dieselfs"

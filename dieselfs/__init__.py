"""DieselFS: a file system for deep-learning training. This module is its public API.

    import dieselfs

    with dieselfs.connect("imagenet") as client:
        client.get("train/1.jpg")

The names are imported when they are used, so that `dlcmd --help` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dieselfs.client import Client, ClientStatistics, connect
    from dieselfs.dataset.file_stat import FileStat
    from dieselfs.errors import DieselFSError

__all__ = ["Client", "ClientStatistics", "DieselFSError", "FileStat", "connect"]

_MODULES: Final = {
    "Client": "dieselfs.client",
    "ClientStatistics": "dieselfs.client",
    "DieselFSError": "dieselfs.errors",
    "FileStat": "dieselfs.dataset.file_stat",
    "connect": "dieselfs.client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)

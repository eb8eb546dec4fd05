"""DieselFS: a file system for deep-learning training. This module is its public API.

    import dieselfs

    with dieselfs.connect("imagenet") as client:
        client.get("train/1.jpg")
    with dieselfs.mount("imagenet", "/mnt/imagenet", memory="8GiB"):
        open("/mnt/imagenet/train/1.jpg", "rb")

The names are imported when they are used, so that `dlcmd --help` stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dieselfs.client import Client, ClientStatistics, connect
    from dieselfs.dataset.file_stat import FileStat
    from dieselfs.errors import DieselFSError
    from dieselfs.fuse.starting.mount_api import mount

__all__ = ["Client", "ClientStatistics", "DieselFSError", "FileStat", "connect", "mount"]

_MODULES: Final = {
    "Client": "dieselfs.client",
    "ClientStatistics": "dieselfs.client",
    "DieselFSError": "dieselfs.errors",
    "FileStat": "dieselfs.dataset.file_stat",
    "connect": "dieselfs.client",
    "mount": "dieselfs.fuse.starting.mount_api",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "mount" and sys.platform != "linux":
        raise AttributeError("dieselfs.mount needs Linux")
    return getattr(import_module(_MODULES[name]), name)

"""The kernel's readahead in a FUSE mount.

It lets large files be read in large requests, and lets an advice read as much at once. The kernel's
own 128 KiB make eight requests of each MiB. 1 MiB is the largest request there is.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

READAHEAD_KIB: Final = 1024
NARROW_KIB: Final = 16
_DEFAULT_KIB: Final = 128
_DEVICES: Final = Path("/sys/class/bdi")


def set_readahead(device: int, kib: int = READAHEAD_KIB) -> None:
    """Set the readahead of a file system by its `st_dev`.

    Needs root, and does nothing without it. Open files keep their readahead. Call it after the
    mount has answered: its first answer sets the readahead that holds until then.
    """
    try:
        _setting(device).write_text(str(kib))
    except OSError as error:
        log.info("files are read in requests of %d KiB: %s", readahead_bytes(device) >> 10, error)


def erofs_settings() -> set[Path]:
    """Return the paths of the readahead settings of all EROFS over files.

    The kernel does not name them by `st_dev`.
    """
    return set(_DEVICES.glob("erofs-*/read_ahead_kb"))


def widen_erofs_readahead(before: set[Path]) -> None:
    """Set the readahead of EROFS that was mounted since `erofs_settings` returned `before`.

    Another process's mount that was made meanwhile gets it too.
    """
    for setting in erofs_settings() - before:
        try:
            setting.write_text(str(READAHEAD_KIB))
        except OSError as error:
            log.info("files are read in requests of %d KiB: %s", _DEFAULT_KIB, error)


def readahead_bytes(device: int) -> int:
    """Return how much the kernel reads ahead in this file system."""
    try:
        return int(_setting(device).read_text()) << 10
    except (OSError, ValueError):
        return _DEFAULT_KIB << 10


def read_ahead(path: str) -> None:
    """Have a file read into the page cache.

    Without it the kernel reads an image's metadata page by page.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.debug("no readahead of %s: %s", path, error)
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)


def _setting(device: int) -> Path:
    return _DEVICES / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb"

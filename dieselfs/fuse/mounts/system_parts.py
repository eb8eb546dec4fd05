"""The parts of the system that a mount needs, and the commands that provide the missing ones.

The kernel's part is the device /dev/fuse. An ordinary user also needs fusermount3, which mounts for
them, unless the mount service runs (`dlcmd mountd`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.service_client import service_socket

FUSERMOUNT: Final = "fusermount3"
_DEVICE: Final = Path("/dev/fuse")
_LOADING: Final = "modprobe fuse"
_IN_A_CONTAINER: Final = "a container needs --device /dev/fuse --cap-add SYS_ADMIN"
_INSTALLERS: Final = {
    "apt-get": "apt-get install fuse3",
    "dnf": "dnf install fuse3",
    "zypper": "zypper install fuse3",
    "pacman": "pacman -S fuse3",
    "apk": "apk add fuse3",
}
"""The command that installs fusermount3, by the package manager of the system."""


def check_parts() -> None:
    """Raise `MountError` with the commands to run if this user can have no mount on this system."""
    has_device = _DEVICE.exists()
    has_helper = (
        os.geteuid() == 0 or shutil.which(FUSERMOUNT) is not None or service_socket().is_socket()
    )
    if has_device and has_helper:
        return
    if has_device:
        raise without_fusermount()
    if has_helper:
        raise MountError(f"{_DEVICE} is missing", f"run `{_as_root(_LOADING)}`; {_IN_A_CONTAINER}")
    raise MountError(
        f"{_DEVICE} and {FUSERMOUNT} are missing",
        f"run `{_as_root(_LOADING)}` and `{_as_root(_installing())}`; {_IN_A_CONTAINER}",
    )


def without_fusermount() -> MountError:
    """Return the error of an ordinary user's mount where fusermount3 is not installed."""
    return MountError(f"{FUSERMOUNT} is not installed", f"run `{_as_root(_installing())}`")


def _installing() -> str:
    """Return the command for this system's package manager; the one of Debian if it has none."""
    found = filter(shutil.which, _INSTALLERS)
    return _INSTALLERS[next(found, "apt-get")]


def _as_root(command: str) -> str:
    return command if os.geteuid() == 0 else f"sudo {command}"

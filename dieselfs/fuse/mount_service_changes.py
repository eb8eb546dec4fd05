"""Changes to a mount that the service has made: its control directory, its end.

Nothing here follows a link or trusts a path of more than one name.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final

from dieselfs.errors import MountpointBusy
from dieselfs.fuse.mount_service_descriptors import mount_entry, mount_id
from dieselfs.fuse.mount_syscalls import attach, clone, detach, detach_mount

CONTROL_SOURCE: Final = "dieselfs-control"
CONTROL_NAME: Final = ".dieselfs"
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BUSY_PATIENCE_S: Final = 0.5
"""For the client to close its descriptor of the mount's root."""


def control_place(root: int) -> int:
    """The control directory of the image. A control mount that is there already is taken away."""
    place = os.open(CONTROL_NAME, _DIRECTORY, dir_fd=root)
    if mount_id(place) == mount_id(root):
        return place
    try:
        entry = mount_entry(place)
        if entry is None or entry.source != CONTROL_SOURCE:
            raise MountpointBusy(f"something else is mounted at {CONTROL_NAME}", "unmount it")
        detach_mount(place)
    finally:
        os.close(place)
    return os.open(CONTROL_NAME, _DIRECTORY, dir_fd=root)


def unmount_unused(path: str, number: int) -> None:
    """Unmount the mount of this number at `path`. `MountpointBusy` if it is in use.

    Its control mount does not count as use, and comes back if the mount stays.
    """
    control = _taken_control(path, number)
    try:
        deadline = time.monotonic() + _BUSY_PATIENCE_S
        while not _is_unmounted(path):
            if time.monotonic() > deadline:
                if control is not None:
                    attach(control, f"{path}/{CONTROL_NAME}")
                raise MountpointBusy(
                    "the mount is in use", "end what uses it, or detach it with --lazy"
                )
            time.sleep(0.02)
    finally:
        if control is not None:
            os.close(control)


def _is_unmounted(path: str) -> bool:
    try:
        detach(path, lazy=False)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _taken_control(path: str, number: int) -> int | None:
    """A clone of the control mount, which itself is taken away."""
    root = os.open(path, _DIRECTORY)
    try:
        if mount_id(root) != number:
            raise MountpointBusy("another mount has come over this one", "try again")
        place = os.open(CONTROL_NAME, _DIRECTORY, dir_fd=root)
        try:
            if mount_id(place) == number:
                return None
            control = clone(place)
            detach_mount(place)
            return control
        finally:
            os.close(place)
    finally:
        os.close(root)

"""The mounts of one file system, told from those of the next one with its device number.

The kernel gives the device number of a file system that has gone to the next one, at once. A server
may not have noticed the end of its mount by then. So it also keeps the unique ids of its mounts,
which no later mount gets (Linux 6.8): as long as one of them is shown, the device number is its
own. On older kernels the device number alone decides.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.mount_syscalls import detach, unique_mount
from dieselfs.fuse.mounts.mount_table import MountEntry, entries_of_device
from dieselfs.fuse.mounts.mountpoint import unmount

log = logging.getLogger(__name__)

_DEVICE: Final = "device"
_IDS: Final = "mount_ids"


class OwnMounts:
    """The mounts of a file system that this process serves. Not thread-safe."""

    def __init__(self, device: tuple[int, int], ids: set[int] | None) -> None:
        """Name a file system; `ids` are the unique ids of its known mounts, None without such."""
        self.device, self._ids = device, ids

    @classmethod
    def at(cls, shown: Path | int) -> OwnMounts:
        """Return the mounts of the file system that is shown at a path, or by a descriptor."""
        mount = unique_mount(shown)
        return cls(mount.device, None if mount.id is None else {mount.id})

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> OwnMounts:
        """Return the mounts of a kept state: none if a former version has kept no device."""
        major, minor = state.get(_DEVICE, (0, 0))
        ids = state.get(_IDS)
        return cls((major, minor), None if ids is None else set(ids))

    @property
    def state(self) -> dict[str, Any]:
        """The state from which `of` makes an equal object; JSON."""
        return {_DEVICE: list(self.device), _IDS: None if self._ids is None else sorted(self._ids)}

    def entries(self) -> list[MountEntry]:
        """Return the mounts that are shown, the last one on top, and note their ids.

        A mount that another one covers is left out. One that was cloned from a known mount since
        the last call is missed if that one has gone meanwhile.
        """
        found, ids = [], set()
        for entry in entries_of_device(self.device):
            with suppress(OSError):  # it has gone meanwhile
                mount = unique_mount(entry.mountpoint)
                if mount.device == self.device:
                    found.append(entry)
                    ids.add(mount.id)
        if self._ids is not None:
            if not ids & self._ids:
                return []
            self._ids = {number for number in ids if number is not None}
        return found

    def detach(self) -> None:
        """Detach the mounts that are shown; open files stay usable. A failure is logged."""
        for entry in reversed(self.entries()):
            try:
                if os.geteuid() == 0:
                    detach(entry.mountpoint)
                else:
                    unmount(entry.mountpoint, lazy=True)
            except (OSError, MountError) as error:
                log.warning("%s is not unmounted: %s", entry.mountpoint, error)

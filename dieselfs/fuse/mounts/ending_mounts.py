"""The check that the kernel ends, or has ended, a file system: no process uses it any more.

A file system that is shown nowhere may still be in use. A refresh, or a lazy unmount, leaves it to
those that have files of it open. When the last one has gone, the kernel ends the file system under
a lock (`s_umount`), and may wait meanwhile for the reads that were begun. ustat(2) takes the same
lock: a thread that waits in it says that the end has begun.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Final

from dieselfs.fuse.mounts.daemon_names import process_state
from dieselfs.fuse.mounts.mount_syscalls import look_up

_LOOKS: Final = 5
_LOOK_S: Final = 0.1


def is_ending(
    device: tuple[int, int], look_up: Callable[[tuple[int, int]], None] = look_up
) -> bool:
    """Return whether the file system of a device number has ended, or is about to.

    False also where the kernel cannot say it, as on ARM. Takes half a second while it ends, and
    else some 0.1 ms. `look_up` raises `OSError` with EINVAL if there is none, and waits for the
    lock.
    """
    errors: list[OSError] = []

    def wait_for_lock() -> None:
        try:
            look_up(device)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=wait_for_lock, name="ending", daemon=True)
    thread.start()
    for _ in range(_LOOKS):
        thread.join(_LOOK_S)
        if not thread.is_alive():
            return bool(errors) and errors[0].errno == errno.EINVAL
        if process_state(thread.native_id or 0) != "D":
            return False
    return True

"""Stopping a server of a mount that no request waits for."""

import os
import signal
from pathlib import Path

from dieselfs.fuse.mounts.mount_syscalls import new_mount
from tests.eventually import eventually
from tests.stopping import stop


def stop_idle(server: int, device: tuple[int, int]) -> None:
    """Stop a server of a file system while none of its requests is under way.

    Another test's list of mounts may ask it. Nothing ends that reader while the server is stopped,
    and the reader keeps the file system in use.
    """

    def is_stopped() -> bool:
        stop(server)
        if requests_of(device):
            os.kill(server, signal.SIGCONT)
            return False
        return True

    eventually(is_stopped, "a server without requests")


def requests_of(device: tuple[int, int]) -> int:
    """Return the unanswered requests of a FUSE file system; 0 for EROFS, which has none."""
    connections = new_mount("fusectl", [("source", "dieselfs-test")])
    try:
        waiting = Path(f"/proc/self/fd/{connections}/{device[1]}/waiting")
        return int(waiting.read_text()) if waiting.exists() else 0
    finally:
        os.close(connections)

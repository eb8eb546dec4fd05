"""The control directory's own mount from its beginning to its end, and the threads that serve it.

A thread waits for the end: the mount is detached and its last file is closed, or `close` is called.
It closes the connection's descriptor, so that the kernel ends all requests that still wait.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.control_requests import CONTROL_THREADS
from dieselfs.fuse.control.control_server import ControlServer
from dieselfs.fuse.mounts.erofs_mounts import new_fuse_mount
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.kernel_connection import KernelConnection, Part
from dieselfs.fuse.requests.pending_reads import PendingReads

log = logging.getLogger(__name__)

_END_S: Final = 0.5


class ControlMount:
    """The FUSE mount of a control directory. It serves until `close`, or until it is detached."""

    def __init__(
        self,
        control: ControlDirectory,
        owner: Owner,
        source: str,
        *,
        fuse: int | None = None,
        on_end: Callable[[], None],
    ) -> None:
        """Make a mount, or take over `fuse`, the /dev/fuse descriptor of one. Raises `OSError`.

        `source` is what mount tables show of a mount that is made here. `on_end` is called once, in
        a thread, when the mount is detached and its last file is closed, or when `close` was
        called.
        """
        self.mount = -1
        """The detached mount, to be shown; -1 if the caller has created it."""
        if fuse is None:
            made = new_fuse_mount(source, is_writable=True)
            fuse, self.mount = made.connection, made.mount
        self._on_end = on_end
        self._ends = threading.Event()
        self._reply_lock = threading.Lock()
        self._is_closed = False
        self._pending = PendingReads(CONTROL_THREADS)
        self._connection = KernelConnection(fuse, is_tree=True, is_writable=True)
        server = ControlServer(self._connection, control, owner, self._pending, self._reply)
        self._connection.start(server, self._ends.set)
        self._thread = threading.Thread(target=self._wait_for_end, name="control", daemon=True)
        self._thread.start()

    def shown(self) -> None:
        """Note that the mount has been shown: the directory keeps it from now on."""
        if self.mount >= 0:
            os.close(self.mount)
            self.mount = -1

    def close(self) -> None:
        """End the connection, also while requests wait: they fail. Returns within 0.5 s."""
        self.shown()
        self._ends.set()
        self._thread.join(_END_S)

    def _reply(self, unique: int, answer: Sequence[Part] | int) -> None:
        """Answer a request later.

        Once the descriptor is closed no answer is written: its number may be another file's.
        """
        with self._reply_lock:
            if not self._is_closed:
                self._connection.reply(unique, answer)

    def _wait_for_end(self) -> None:
        self._ends.wait()
        while not self._connection.stop():
            log.warning("the threads of the control directory did not end in time")
        self._pending.close()
        with self._reply_lock:
            self._is_closed = True
            os.close(self._connection.fd)
        self._on_end()

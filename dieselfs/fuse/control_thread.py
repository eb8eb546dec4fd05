"""The control directory's own mount before EROFS, served by pyfuse3 and trio in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import trio

from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_operations import serve_control
from dieselfs.fuse.erofs_mounts import new_fuse_mount

log = logging.getLogger(__name__)

_END_S = 0.5


class ControlThread:
    """Serves from its beginning to `close`, or until the mount is detached. There is one in a process."""

    def __init__(
        self,
        control: ControlDirectory,
        owner: Owner,
        source: str = "",
        *,
        fuse: int | None = None,
        on_end: Callable[[], None],
    ) -> None:
        """Makes a mount, or serves that of `fuse`, a descriptor of /dev/fuse that it takes over. Raises `OSError`.

        `on_end` is called once, in the thread, when the mount is detached and its last file is closed, or `close` was called.
        """
        self.mount = -1
        """The mount that is nowhere yet, to be shown; -1 if the caller has made it."""
        if fuse is None:
            made = new_fuse_mount(source)
            fuse, self.mount = made.connection, made.mount
        self._control, self._owner, self._fuse = control, owner, fuse
        self._on_end = on_end
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def shown(self) -> None:
        """The mount has been shown: the directory keeps it from now on."""
        if self.mount >= 0:
            os.close(self.mount)
            self.mount = -1

    def close(self) -> None:
        self.shown()
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._scope.cancel)
            except trio.RunFinishedError:
                pass
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except Exception:
            log.exception("the control directory has failed")
        finally:
            os.close(self._fuse)
            self._on_end()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await serve_control(self._fuse, self._control, self._owner)

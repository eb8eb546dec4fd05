"""Lists directories of a mount before a reader does: tells what readers list to the plan (`listing_ahead`), and what comes next to
a process that lists it through the mount (`lister_process`).

It must be a process of its own: the daemon would wait for its own answers, and the kernel charges a listing's work to whoever asks.
It is started when a reader first goes on to a next directory; it is idle, and holds nothing in the mount, when no reader does. Where
it can't be started nothing is listed ahead, and the log says so.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from dieselfs.fuse.inodes import ROOT_INODE, epoch_of, snapshot_inode
from dieselfs.fuse.listing_ahead import ListingAhead

if TYPE_CHECKING:
    from dieselfs.ending import Ending
    from dieselfs.fuse.epochs import Epochs
    from dieselfs.fuse.fast_path import FastPath

log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("lister_process.py")
_END_TIMEOUT_S: Final = 1.0
_NOT_LISTED: Final = "directories are not listed ahead"


class Lister:
    """Drives the listing ahead of one mount's fast path."""

    def __init__(self, fast_path: FastPath, epochs: Epochs, ending: Ending) -> None:
        self._fast_path = fast_path
        self._epochs = epochs
        self._ending = ending
        self._planned = epochs.current
        self._plan = ListingAhead(epochs.current.snapshot)
        self._something_began = trio.Event()

    async def run(self, mountpoint: Path) -> None:
        """For as long as the mount lives, or the process. The fast path must be active."""
        try:
            begun = self._fast_path.listings_fd()
        except OSError as error:
            log.warning("%s: %s", _NOT_LISTED, error)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_readers, begun)
            await self._list_ahead(mountpoint)
            nursery.cancel_scope.cancel()

    async def _follow_readers(self, begun: int) -> None:
        while True:
            await trio.lowlevel.wait_readable(begun)
            for inode in self._fast_path.begun_listings():
                self._note(inode)
            self._something_began.set()

    def _note(self, inode: int) -> None:
        if self._planned is not self._epochs.current:
            self._planned = self._epochs.current
            self._plan = ListingAhead(self._planned.snapshot)
        # Paths lead to the current epoch only; and nothing comes after the root.
        if inode != ROOT_INODE and epoch_of(inode) == self._planned.epoch:
            self._plan.begun(snapshot_inode(inode))

    async def _next(self) -> Sequence[bytes]:
        while not (paths := self._plan.take()):
            self._something_began = trio.Event()
            await self._something_began.wait()
        return paths

    async def _list_ahead(self, mountpoint: Path) -> None:
        paths = await self._next()
        try:
            process = await _start(mountpoint)
        except OSError as error:
            log.warning("%s: %s", _NOT_LISTED, error)
            return
        try:
            self._fast_path.ignore_pid(process.pid)
            while await _listed(process, paths):
                self._fast_path.listed_ahead += len(paths)
                paths = await self._next()
            log.warning("%s any more: the process that does it has ended", _NOT_LISTED)
        finally:
            process.kill()
            # It ends at once unless it waits for an answer that this very thread owes it.
            with trio.move_on_after(self._ending.left_s(_END_TIMEOUT_S), shield=True):
                await process.wait()


async def _start(mountpoint: Path) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", os.fspath(_PROGRAM), os.fspath(mountpoint)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the daemon
    )


async def _listed(process: trio.Process, paths: Sequence[bytes]) -> bool:
    """False if the process has ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    waiting = len(paths)
    try:
        await process.stdin.send_all(b"".join(path + b"\0" for path in paths))
        while waiting and (done := await process.stdout.receive_some()):
            waiting -= len(done)
    except trio.BrokenResourceError:
        return False
    return not waiting

"""A running mount takes a newer snapshot: it is found and verified, becomes current, and then the kernel is told.

The order makes every look-up right. Once the new snapshot is current no answer leads from the root into the old one; names that
the kernel still remembers do, until they are invalidated. Only the root's need be: all below hangs on inodes that are not used
again (design §6 a), and absent names are never remembered in the root. When the last name is invalidated the refresh is complete,
and `shown` and `dataset.json` say so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress

import pyfuse3
import trio

from dieselfs.fuse.epochs import Epochs
from dieselfs.fuse.inodes import ROOT_INODE
from dieselfs.worker_threads import WorkerThreads
from metadata.errors import SnapshotRefused
from metadata.snapshot import ROOT, Snapshot

log = logging.getLogger(__name__)

NewerSnapshot = Callable[[Snapshot], Snapshot | None]
"""Finds a snapshot to show instead of the given one, open, or None if that is the newest. May block."""


class Refresher:
    """Refreshes one mount whenever it is told to. One refresh at a time."""

    def __init__(self, epochs: Epochs, newer: NewerSnapshot) -> None:
        self._epochs = epochs
        self._newer = newer
        # Not the readers' threads: a store that hangs them must not delay what invalidates names.
        self._threads = WorkerThreads(1)
        self.shown = epochs.current.snapshot
        """What every look-up that begins now sees."""
        self._attempts = 0
        self._running = False
        self._error: str | None = None

    async def refresh(self) -> None:
        """Show a newer snapshot if there is one. A failure is logged and leaves the mount as it is."""
        self._running, self._error = True, None
        try:
            await self._refresh()
        except Exception as error:
            log.error("not refreshed: %s", error, exc_info=error)
            self._error = str(error) or type(error).__name__
        self._attempts += 1
        self._running = False

    async def _refresh(self) -> None:
        before = self.shown
        snapshot = await self._threads.run_abandonable(_sound, self._newer, before)
        if snapshot is None:
            log.info("snapshot %s is the newest", before.id)
            return
        self._epochs.add(snapshot)
        await self._threads.run_abandonable(_forget_root, before)
        self.shown = snapshot
        log.info("refreshed: snapshot %s, before %s", snapshot.id, before.id)

    def document(self) -> bytes:
        """`refresh.json`: how many refreshes have ended, whether one is under way, why the last one failed."""
        document = {"attempts": self._attempts, "running": self._running, "error": self._error}
        return json.dumps(document, indent=2).encode() + b"\n"


def _sound(newer: NewerSnapshot, before: Snapshot) -> Snapshot | None:
    """What `newer` finds, verified."""
    snapshot = newer(before)
    if snapshot is not None:
        if snapshot.dataset != before.dataset:
            raise SnapshotRefused(f"snapshot {snapshot.id} is of another dataset: {snapshot.path}")
        Snapshot.verify(snapshot.path)
    return snapshot


def _forget_root(before: Snapshot) -> None:
    """Make the kernel ask again for the root, its listing and the names that it had in `before`.

    For a worker thread: the kernel waits for look-ups in the root that are under way, and those wait for us.
    """
    pyfuse3.invalidate_inode(ROOT_INODE)
    for name, _ in before.children(ROOT):
        trio.from_thread.check_cancelled()  # the mount has ended, and soon pyfuse3 with it
        with suppress(FileNotFoundError):  # the kernel does not know the name
            pyfuse3.invalidate_entry(ROOT_INODE, name)

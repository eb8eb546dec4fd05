"""The cache blocks of a task as one process has them: mapped, found in the folder, or loaded.

A block that is in the folder and not mapped yet is mapped, once a process. A missing block is
requested from the task's master, which fetches it once for all. On the way the process handles
cache events and tells the master which blocks it maps.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chunkstore.chunk_source import ChunkRef, ChunkSource
from chunkstore.errors import Corrupt, NotFound
from dieselfs.cache.node.mapped_blocks import MappedBlocks
from dieselfs.cache.ports.block import CacheBlock, is_whole
from dieselfs.cache.ports.shared_source import SharedSource
from dieselfs.cache.task.bypass import CacheBypass
from dieselfs.cache.task.leader import MemorySettings
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.task.task_session import TaskSession
from dieselfs.cache.wire.local_messages import Message, PlanProgress
from dieselfs.errors import CacheFull, DieselFSError, LocalFileError, MasterGone

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""The attempts to get a block from a master.

The master may die, or evict the block before it is mapped.
"""
_UNMAPPING_S: Final = 1.0
"""The shortest time between two looks for evicted blocks of a process that maps no others."""


@dataclass(slots=True)
class SessionSettings:
    """The settings that each new master must be told again."""

    expected: Sequence[str] = ()
    used: int = 0
    plan: Path | None = None
    quota_bytes: int | None = None
    """The bytes allocated to node memory; None: no quota is known."""
    window_bytes: int = 0
    """The bytes of node memory that the expected uses need at least."""


class TaskBlocks:
    """The blocks of one process. Thread-safe; fork-safe by `renew`."""

    def __init__(self, settings: MemorySettings, source: ChunkSource, lead: bool) -> None:
        """Become a member when a master is first needed."""
        self._shared = source if isinstance(source, SharedSource) else None
        self.mapped = MappedBlocks()
        self.bypass = CacheBypass(self._folder_changed_ns)
        self.session = SessionSettings()
        self.membership = TaskSession(settings, source, lead, self._joined, self._exchange)
        self._handling_events = threading.Lock()
        self._unmap_at = 0.0

    def is_bypassed(self, chunk: ChunkRef) -> bool:
        """Return whether files of a chunk that is not mapped are to be read from its owner.

        The reason is that there is no room for the chunk on this node. It takes 0.2 µs mostly.
        """
        bypass, shared = self.bypass, self._shared
        if shared is None or not bypass.is_full() or not is_whole(chunk):
            return False
        name = chunk.id.value
        if bypass.is_absent(name):
            return True
        if not shared.owner_is_elsewhere(chunk.id) or self.find(CacheBlock(chunk)) is not None:
            return False
        bypass.note_absent(name)
        return True

    def find_or_load(self, block: CacheBlock) -> tuple[memoryview | None, bool]:
        """Return (the block, whether it was neither mapped nor in the folder).

        None: it must be read bypassing node memory. Raises what `ChunkSource` raises.
        """
        view = self.mapped.get(block)
        if view is None and self.is_bypassed(block.chunk):
            return None, True
        if view is None:
            view = self.find(block)
        if view is None:
            return self.load(block), True
        return view, False

    def find(self, block: CacheBlock) -> memoryview | None:
        """Return the block if it is mapped or in the folder."""
        view = self.mapped.get(block)
        if view is None:
            if self.membership.current() is None:  # a process that maps must get the cache events
                self.ask(lambda master: None)
            view = self.map(block)
        return view

    def load(self, block: CacheBlock) -> memoryview | None:
        """Request the block from the master; None if it must be read bypassing node memory."""
        elsewhere = self._shared is not None and self._shared.owner_is_elsewhere(block.chunk.id)
        if elsewhere and not self.bypass.may_ask():
            return None
        for _ in range(_ATTEMPTS):
            try:
                master = self.membership.master()
            except MasterGone:
                return None
            try:
                master.fetch(block)
            except CacheFull:
                if elsewhere:
                    self.bypass.note_full()
                return None
            except (LocalFileError, Corrupt, NotFound):
                return None
            except MasterGone:
                continue
            view = self.map(block)
            if view is not None:
                if elsewhere:
                    self.bypass.note_room()
                return view
        return None

    def map(self, block: CacheBlock) -> memoryview | None:
        """Map the block if its file exists and the process has a master. Never wait.

        At the same time pending cache events are handled and the master is told of new maps. Files
        in a folder without a master are not trusted: the next master verifies them first.
        """
        master = self.membership.current()
        if master is None:
            return None
        try:
            self._handle_events(master)
        except MasterGone:
            return None
        view = self.mapped.map(self.membership.folder.chunks, block)
        with suppress(MasterGone):
            self._report_maps(master)
        return view

    def ask(self, request: Callable[[TaskMaster], None]) -> None:
        """Make a request of the master; drop it if there is none."""
        try:
            request(self.membership.master())
        except MasterGone as error:
            log.debug("cannot send a request to a master: %s", error)

    def tell(self, notice: Message) -> None:
        """Send a notice, unless that would have to wait.

        If the master is gone, the next one is told everything again.
        """
        master = self.membership.current()
        if master is not None:
            with suppress(MasterGone):
                master.send_notice(notice, wait=False)

    def unmap_evicted(self) -> None:
        """Drop the blocks that were evicted, and tell the master, at most once a second.

        A process that maps no other block would keep them for ever. It never waits, and takes
        0.1 µs mostly.
        """
        now = time.monotonic()
        if now < self._unmap_at:
            return
        self._unmap_at = now + _UNMAPPING_S
        master = self.membership.current()
        if master is not None:
            with suppress(MasterGone):
                self._exchange(master)

    def renew(self) -> None:
        """Start with the parent's maps and a session of its own in a forked child."""
        self.mapped.renew_locks()
        self._handling_events = threading.Lock()
        self.session = SessionSettings()  # the parent's settings stay with the parent
        trusted_s = self.bypass.trusted_s
        self.bypass = CacheBypass(self._folder_changed_ns)
        self.bypass.trusted_s = trusted_s
        self.membership.renew()

    def _exchange(self, master: TaskMaster) -> None:
        """Drop the blocks that were evicted, and tell the master of maps that are gone."""
        self._handle_events(master)
        self._report_maps(master)

    def _handle_events(self, master: TaskMaster) -> None:
        if self._handling_events.acquire(blocking=False):
            try:
                for evicted, name in master.events():
                    if evicted:
                        self.mapped.drop(name)
            finally:
                self._handling_events.release()

    def _report_maps(self, master: TaskMaster) -> None:
        self.mapped.report_changes(lambda notice: master.send_notice(notice, wait=False))

    def _joined(self, master: TaskMaster) -> None:
        """Tell a new master the session settings and the maps.

        First drop the blocks that the master before has evicted without this process noticing.
        """
        self.mapped.drop_missing(self.membership.folder.chunks)
        self.mapped.report_all(master.send_notice)
        try:
            if self.session.quota_bytes is not None:
                master.set_quota(self.session.quota_bytes, self.session.window_bytes)
            if self.session.expected:
                master.expect(self.session.expected)
                master.send_notice(PlanProgress(self.session.used))
            # A plan's owner removes its file at the end of the epoch.
            if self.session.plan is not None and self.session.plan.exists():
                master.follow(self.session.plan)
        except DieselFSError as error:
            if master.is_gone:
                raise
            log.warning(
                "the new master of %s does not follow the plan: %s", self.membership.folder, error
            )

    def _folder_changed_ns(self) -> int:
        return os.stat(self.membership.folder.chunks).st_mtime_ns

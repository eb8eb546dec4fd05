"""One process's membership in a task: it finds the task's master, or makes sure that there is one.

A process that forks no user code leads the task itself if no other process does; a client starts a
helper. If the source cannot be handed to a helper, this process serves it, in a folder of its own.

When the master is gone, the next call elects another one. If none can be had in a few seconds,
calls fail at once for a while, so that readers bypass node memory instead of waiting each time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from chunkstore.chunk_source import ChunkSource
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task import master_process
from dieselfs.cache.task.leader import Leader, MemorySettings
from dieselfs.cache.task.local_master import LocalMaster
from dieselfs.cache.task.master_process import HelperKilled, SourceNotPortable
from dieselfs.cache.task.remote_master import CONNECT_TIMEOUT_S, RemoteMaster
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.wire import packet_socket
from dieselfs.errors import DieselFSError, MasterGone

log = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0
"""The time limit for finding a master; a helper takes 0.4 s to start."""
RETRY_S: Final = 5.0
"""The time after a failed election before the next one."""
_STARTER: Final = "starter"
"""The file that a client locks while it starts a helper.

So sixteen workers do not start sixteen helpers.
"""
_LONGEST_PAUSE_S: Final = 0.1


class TaskSession:
    """The membership of one process. Thread-safe.

    A forked child starts its own membership of the same task.
    """

    def __init__(
        self,
        settings: MemorySettings,
        source: ChunkSource,
        lead: bool,
        joined: Callable[[TaskMaster], None],
        exchange: Callable[[TaskMaster], None],
    ) -> None:
        """`joined` is called with each master that is found, before any other code gets it.

        `exchange` is called while a fetch waits, and has cache events of that master handled. Both
        may raise `MasterGone`.
        """
        self.settings = settings
        self.joins = 0
        self._source = source
        self._leads = lead
        self._starts_helpers = not lead
        self._joined, self._exchange = joined, exchange
        self._leader: Leader | None = None
        self._master: TaskMaster | None = None
        self._electing = threading.Lock()
        self._try_again_at = 0.0
        self._closed = False
        self._pid = os.getpid()
        self._parents: list[object] = []
        """The parent's objects in a forked child: they are never used or finalised here."""

    @property
    def folder(self) -> TaskFolder:
        """The folder of the task."""
        return self.settings.folder

    def current(self) -> TaskMaster | None:
        """Return the master if this process has one now. Never wait."""
        master = self._master
        if master is None or master.is_gone or self._pid != os.getpid():
            return None
        return master

    def has_master(self) -> bool:
        """Return whether this process has a master, also if nothing was asked of it since."""
        master = self.current()
        return master is not None and not master.has_ended()

    def master(self) -> TaskMaster:
        """Return the master, or elect another one if it is gone.

        Raises `MasterGone`, after some seconds or at once.
        """
        if self._pid != os.getpid():
            self.renew()
        master = self._master
        if master is not None and not master.is_gone:
            return master
        with self._electing:
            master = self._master
            if master is not None and not master.is_gone:
                return master
            if self._closed or time.monotonic() < self._try_again_at:
                raise MasterGone(f"{self.folder.path} had no master at the last attempt")
            if master is not None:
                self._master = None
                master.close()
            try:
                self._master = self._elect()
            except MasterGone as error:
                self._try_again_at = time.monotonic() + RETRY_S
                log.warning("reads bypass node memory for %g s: %s", RETRY_S, error)
                raise
            return self._master

    def set_budget(self, budget_bytes: int) -> None:
        """Set the budget for masters that are found, and helpers that are started, later."""
        self.settings = replace(self.settings, budget_bytes=budget_bytes)

    def close(self, timeout_s: float) -> None:
        """Leave the task, and end the leadership if this process has it.

        If an election is still under way after `timeout_s`, its leadership ends with the process.
        """
        deadline = time.monotonic() + timeout_s
        self._closed = True
        if self._pid != os.getpid():
            return
        master = self._master  # an election may end it meanwhile
        if master is not None:
            master.close()
        if not self._electing.acquire(timeout=timeout_s):
            return
        try:
            master, self._master = self._master, None
            leader, self._leader = self._leader, None
        finally:
            self._electing.release()
        if master is not None:
            master.close()
        if leader is not None:
            # No other process can lead a private task.
            keep = self._leads or self._starts_helpers
            leader.end(keep_for_members=keep, timeout_s=max(0.0, deadline - time.monotonic()))
        elif self._leads:
            with suppress(OSError, DieselFSError):  # then the next leader of any task removes them
                self._remove_unled(deadline)

    def _remove_unled(self, deadline: float) -> None:
        """Remove the task's files if its leader has left them to this member, which never led."""
        while self.folder.path.exists():
            leadership = self.folder.try_lead()
            if leadership is not None:
                leadership.release(True, max(0.0, deadline - time.monotonic()))
                return
            # A leader that serves no more may have counted this member just before.
            if self._is_served() or time.monotonic() >= deadline:
                return
            time.sleep(_LONGEST_PAUSE_S)

    def renew(self) -> None:
        """Drop the parent's objects in a forked child.

        Threads that do not exist in the child may hold their locks.
        """
        self._pid = os.getpid()
        self._electing = threading.Lock()
        self._try_again_at = 0.0
        self.joins = 0
        if self._master is not None:
            self._master.forsake()
        if self._leader is not None:
            self._leader.server.forsake()
        self._parents.extend((self._master, self._leader))
        self._starts_helpers = self._starts_helpers and self._leader is None
        self._leads = False
        self._master = self._leader = None

    def _elect(self) -> TaskMaster:
        can_found = self._leads or self._starts_helpers
        deadline = time.monotonic() + (PATIENCE_S if can_found else 0.0)
        pause_s, was_killed = 0.005, False
        while True:
            try:
                master = self._join()
                try:
                    self._joined(master)
                except BaseException:
                    master.close()
                    raise
                self.joins += 1
                return master
            except MasterGone:
                if self._closed or time.monotonic() > deadline:
                    raise
            try:
                self._ensure_master()
            except HelperKilled:
                if was_killed:  # each one ends like this
                    raise
                was_killed = True
            if self._leader is None:  # all members notice at the same time
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _join(self) -> TaskMaster:
        """Join the master of this process, or the one that listens at the task's socket."""
        budget_bytes, job = self.settings.budget_bytes, self.settings.job
        if self._leader is not None:
            return LocalMaster(self._leader, budget_bytes, self._exchange, job)
        return RemoteMaster(self.folder.socket_path, budget_bytes, self._exchange, job)

    def _ensure_master(self) -> None:
        """Lead or start a helper, if this process does that and no other one is doing it now."""
        if self._leads:
            self._try_lead(self.settings)
        elif self._starts_helpers:
            try:
                self._start_helper()
            except SourceNotPortable as error:
                log.info("node memory serves this process alone: %s", error)
                self._lead_privately()

    def _try_lead(self, settings: MemorySettings) -> None:
        if self._leader is not None:
            return
        try:
            self._leader = Leader.begin(settings, self._source)
        except (OSError, DieselFSError) as error:
            raise MasterGone(f"cannot lead {settings.folder.path}: {error}") from error

    def _lead_privately(self) -> None:
        """Lead a private task, for a source that lives in this process alone.

        Children that are forked share the task.
        """
        path = self.folder.path
        try:
            private = TaskFolder.at(f"private-{os.getpid()}-{os.urandom(4).hex()}", path.parent)
        except DieselFSError as error:
            raise MasterGone(str(error)) from error
        settings = replace(self.settings, folder=private, peers=None)
        self._try_lead(settings)
        self.settings, self._starts_helpers = settings, False

    def _start_helper(self) -> None:
        try:
            # A record lock: children do not inherit it.
            starter = os.open(
                self.folder.path / _STARTER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError:  # the folder was swept just now; the helper makes it
            master_process.start(self.settings, self._source)
            return
        try:
            fcntl.lockf(starter, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_served():
                master_process.start(self.settings, self._source)
        except (BlockingIOError, PermissionError):
            pass  # another client starts one
        finally:
            os.close(starter)

    def _is_served(self) -> bool:
        """Return whether another client has started a helper since the last check."""
        try:
            packet_socket.connect(self.folder.socket_path, CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        return True

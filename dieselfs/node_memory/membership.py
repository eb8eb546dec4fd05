"""One process's membership in a task: finds the task's master, or sees to it that there is one.

A process that forks no user code leads itself if nobody does; a client starts a helper. A source that no helper can
be given is served from here, in a folder of this process's own. When the master has gone the next call elects again; when none can
be had in a few seconds, calls fail at once for a while, so that readers go past node memory and do not wait each time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chunkstore.chunk_source import ChunkSource
from dieselfs.errors import DieselFSError, MasterGone
from dieselfs.node_memory import master_process, packet_socket
from dieselfs.node_memory.leader import Leader, MemorySettings
from dieselfs.node_memory.master_process import SourceNotPortable
from dieselfs.node_memory.remote_master import CONNECT_TIMEOUT_S, RemoteMaster
from dieselfs.node_memory.task_folder import TaskFolder

log = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0
"""For a master to be found; a helper takes 0.4 s to start."""
RETRY_S: Final = 5.0
"""Until it is tried again."""
_STARTER: Final = "starter"
"""Locked by the client that starts a helper, so that sixteen workers do not start sixteen."""
_LONGEST_PAUSE_S: Final = 0.1


class TaskSession:
    """Thread-safe. A forked child begins anew, as a member of the same task."""

    def __init__(
        self,
        settings: MemorySettings,
        source: ChunkSource,
        lead: bool,
        joined: Callable[[RemoteMaster], None],
    ) -> None:
        """`joined` is called with each master that was found, before anybody else is given it; it may raise `MasterGone`."""
        self.settings = settings
        self.joins = 0
        self._source = source
        self._leads = lead
        self._starts_helpers = not lead
        self._joined = joined
        self._leader: Leader | None = None
        self._master: RemoteMaster | None = None
        self._electing = threading.Lock()
        self._try_again_at = 0.0
        self._closed = False
        self._pid = os.getpid()
        self._parents: list[object] = []
        """What a forked child has of its parent's: never used, and never finalised here."""

    @property
    def folder(self) -> TaskFolder:
        return self.settings.folder

    def current(self) -> RemoteMaster | None:
        """The master, if this process has one just now. Never waits."""
        master = self._master
        if master is None or master.is_gone or self._pid != os.getpid():
            return None
        return master

    def master(self) -> RemoteMaster:
        """The master; another one if it has gone. Raises `MasterGone`, after some seconds or at once."""
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
                raise MasterGone(f"{self.folder.path} had no master a moment ago")
            if master is not None:
                self._master = None
                master.close()
            try:
                self._master = self._elect()
            except MasterGone as error:
                self._try_again_at = time.monotonic() + RETRY_S
                log.warning("reading past node memory for %g s: %s", RETRY_S, error)
                raise
            return self._master

    def set_budget(self, budget_bytes: int) -> None:
        """What a master that is found later is told; and for which a helper is started."""
        self.settings = replace(self.settings, budget_bytes=budget_bytes)

    def close(self, timeout_s: float) -> None:
        """Leave, and end the lead if this process has it. A lead that is being taken for so long ends with the process."""
        deadline = time.monotonic() + timeout_s
        self._closed = True
        if self._pid != os.getpid():
            return
        if self._master is not None:
            self._master.close()
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
            # Of a private task no other process can be the leader.
            keep = self._leads or self._starts_helpers
            leader.end(keep_for_members=keep, timeout_s=max(0.0, deadline - time.monotonic()))

    def renew(self) -> None:
        """In a forked child: let go of what is the parent's. Locks may be held by threads that do not exist here."""
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

    def _elect(self) -> RemoteMaster:
        can_found = self._leads or self._starts_helpers
        deadline = time.monotonic() + (PATIENCE_S if can_found else 0.0)
        pause_s = 0.005
        while True:
            try:
                master = RemoteMaster(self.folder.socket_path, self.settings.budget_bytes)
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
            self._see_to_a_master()
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # members find out all at once
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _see_to_a_master(self) -> None:
        """Make one, if that is ours to do and nobody else is at it."""
        if self._leads:
            self._try_lead(self.settings)
        elif self._starts_helpers:
            try:
                self._start_helper()
            except SourceNotPortable as error:
                log.info("node memory of this process alone: %s", error)
                self._lead_privately()

    def _try_lead(self, settings: MemorySettings) -> None:
        if self._leader is not None:
            return
        try:
            self._leader = Leader.begin(settings, self._source)
        except (OSError, DieselFSError) as error:
            raise MasterGone(f"{settings.folder.path}: {error}") from error

    def _lead_privately(self) -> None:
        """A source that lives in this process alone: so does the task, with children that were forked."""
        path = self.folder.path
        try:
            private = TaskFolder.at(f"private-{os.getpid()}-{secrets.token_hex(4)}", path.parent)
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
        except OSError:  # swept just now; the helper makes the folder
            master_process.start(self.settings, self._source)
            return
        try:
            fcntl.lockf(starter, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_served():
                master_process.start(self.settings, self._source)
        except (BlockingIOError, PermissionError):
            pass  # somebody else starts one
        finally:
            os.close(starter)

    def _is_served(self) -> bool:
        """Whether another client has started a helper since we last asked."""
        try:
            packet_socket.connect(self.folder.socket_path, CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        return True

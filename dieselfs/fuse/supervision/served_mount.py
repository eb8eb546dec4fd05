"""The mounts of a supervisor: each is one connection, and the processes that serve it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dieselfs.fuse.mounts.daemon_names import SUPERVISOR, announced, process_state
from dieselfs.fuse.mounts.own_mounts import OwnMounts
from dieselfs.fuse.supervision.handover import Channel, Role

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerProcess:
    """A server, as its supervisor sees it."""

    pid: int
    channel: Channel
    role: Role
    started: float
    is_ready: bool = False
    is_ending: bool = False
    """The main thread had ended at the last check."""
    is_stopped: bool = False
    """It was stopped at the last check."""

    def hangs(self) -> bool:
        """Return True if it does not end although its main thread ended long ago.

        Another thread waits in the kernel, where no signal reaches it, for an answer that the next
        server can give (`store_filler`).
        """
        was_ending, self.is_ending = self.is_ending, _has_no_main_thread(self.pid)
        return was_ending and self.is_ending

    def send(self, message: Mapping[str, Any]) -> None:
        """Send it a message. One that has ended gets none; a signal says so soon."""
        with suppress(OSError):
            self.channel.send(message)

    def note_stop(self) -> None:
        """Log that it was stopped or goes on. It answers nothing meanwhile, and nothing is done."""
        was_stopped, self.is_stopped = self.is_stopped, process_state(self.pid) in ("T", "t")
        if self.is_stopped and not was_stopped:
            log.warning(
                "the server %d is stopped: readers wait until it continues, or is unmounted",
                self.pid,
            )
        elif was_stopped and not self.is_stopped:
            log.info("the server %d continues", self.pid)


@dataclass(slots=True)
class ServedMount:
    """One connection, and the processes that serve it."""

    kept: dict[str, list[int]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    process: ServerProcess | None = None
    retiring: list[ServerProcess] = field(default_factory=list)
    quick_deaths: int = 0
    is_over: bool = False
    """No server is started for it any more."""
    name: socket.socket | None = None
    """The name by which this process is found if the mount does not answer."""
    replaces_current: bool = False
    """It is of a refresh that has not ended."""
    told: dict[str, bool] = field(default_factory=dict)
    """Messages that hold until the mount ends. Its later servers get them too."""
    waits_for_server: bool = False
    """No server could be started for it, so the next check tries again."""

    @property
    def processes(self) -> list[ServerProcess]:
        """The server, and those that are told to retire."""
        return [*([self.process] if self.process else []), *self.retiring]

    @property
    def kept_count(self) -> int:
        """The number of descriptors that are kept for the next server."""
        return sum(map(len, self.kept.values()))

    @property
    def is_settled(self) -> bool:
        """True if one server, and no other, serves it."""
        return self.process is not None and self.process.is_ready and not self.retiring

    def keep(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        """Keep a server's state and descriptors for the next one, as `Handed.keep` sent them."""
        self.state = message["state"]
        if self.name is None:
            self.name = announced(self.state, SUPERVISOR)
        for name, count in message["keep"].items():
            for fd in self.kept.get(name, []):
                os.close(fd)
            self.kept[name], descriptors = descriptors[:count], descriptors[count:]

    def tell(self, message: Mapping[str, bool], teller: ServerProcess | None = None) -> None:
        """Tell all its servers, now and later, what holds until its end; not the `teller`."""
        self.told.update(message)
        for process in self.processes:
            if process is not teller:
                process.send(message)

    def close(self) -> None:
        """Close the kept descriptors, and take the name back."""
        for descriptors in self.kept.values():
            for fd in descriptors:
                os.close(fd)
        self.kept = {}
        self.close_name()

    def close_name(self) -> None:
        """Take the name back."""
        if self.name is not None:
            self.name.close()
        self.name = None

    def detach(self) -> None:
        """Detach it from all its mountpoints, since its server was killed and could not."""
        OwnMounts.of(self.state).detach()


def _has_no_main_thread(pid: int) -> bool:
    """Return True if a child that is not reaped yet is a zombie: all of it, or its main thread.

    False if this process can open no file.
    """
    return process_state(pid) == "Z"

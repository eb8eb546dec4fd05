"""The state that a mount's supervisor hands to a server, and what the two tell each other."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

_MAX_MESSAGE_BYTES: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 64


class Role(StrEnum):
    """The purpose for which a server is started."""

    FIRST = "first"
    """Make the mount."""
    RESUME = "resume"
    """Take over a connection whose server has died."""
    UPGRADE = "upgrade"
    """Take over a connection whose server is then told to retire."""
    REFRESH = "refresh"
    """Replace the mount by one of a newer snapshot, if there is one."""


class Channel:
    """Messages with descriptors between a supervisor and one server."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message; `OSError` if no process is at the other end."""
        socket.send_fds(self.socket, [json.dumps(message).encode()], list(descriptors))

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for the next message and return it; None at the end."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
        return (json.loads(data), descriptors) if data else None


@dataclass(slots=True)
class Handed:
    """The state that a server gets from its supervisor.

    The descriptors are the server's own copies.
    """

    role: Role
    channel: Channel
    descriptors: dict[str, list[int]]
    """Descriptors under the names by which a former server gave them to be kept."""
    state: dict[str, Any]
    """The state of the mount from the former server.

    For REFRESH it is from the server of the present mount.
    """
    refreshes: dict[str, Any]
    """The content of `refresh.json`."""
    has_kept: bool = False
    """The supervisor can start another server of this mount."""

    def keep(self, state: Mapping[str, Any], **descriptors: Sequence[int]) -> None:
        """Have the supervisor keep these for the next server.

        They replace those of the same names.
        """
        counts = {name: len(kept) for name, kept in descriptors.items()}
        flat = [fd for kept in descriptors.values() for fd in kept]
        self.channel.send({"keep": counts, "state": dict(state)}, flat)
        self.has_kept = True

    def is_ready(self) -> None:
        """Tell the supervisor that the mount answers."""
        self.channel.send({"ready": True})

    def refused(self, reason: str | None) -> None:
        """Report that a REFRESH ends without a new mount.

        `reason` is None if there is nothing newer.
        """
        self.channel.send({"refused": reason})

    def front_has_gone(self) -> None:
        """Tell the other servers of this connection that the front has gone.

        The kernel has told only this one.
        """
        with suppress(OSError):  # without a supervisor
            self.channel.send({"gone": True})


Serve = Callable[[Handed], int]
"""A function that serves in a process of its own until the mount ends.

It returns the exit status, 0 if the end was in order.
"""

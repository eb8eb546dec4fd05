"""The names by which the processes of a mount are found although the mount does not answer.

Each supervisor and each server of a mount listens on a socket whose abstract name has the mount's
device number. Nothing is ever sent over it. The kernel lists the names to every process, says which
process listens, and drops a name with the last process that holds it. So a process that is stopped
is found, and a name cannot point to another process.

    dieselfs-mount <major>:<minor> <role> <pid> <start of the process> <connection>…

A connection is the number of a FUSE connection that the mount needs (fusectl). The names are those
of one network namespace.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

_PREFIX: Final = "dieselfs-mount"
_NAMES: Final = Path("/proc/net/unix")
_PEER: Final = struct.Struct("3i")
SUPERVISOR: Final = "supervisor"
SERVER: Final = "server"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process of a mount, as the kernel vouches for it."""

    pid: int
    uid: int
    role: str
    """`SUPERVISOR` or `SERVER`."""
    connections: tuple[int, ...]
    started: int
    """The start of the process in clock ticks since boot, which no later process of the number has.
    """

    @property
    def is_stopped(self) -> bool:
        """True if a signal or a debugger has stopped it; False if it has ended."""
        return self._is_there and process_state(self.pid) in ("T", "t")

    @property
    def _is_there(self) -> bool:
        with suppress(OSError):
            return _start_of(self.pid) == self.started
        return False

    def opened(self) -> int | None:
        """Return a descriptor of the process, which is the caller's; None if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self._is_there:
            return descriptor
        os.close(descriptor)
        return None


def announce(device: Sequence[int], role: str, connections: Sequence[int] = ()) -> socket.socket:
    """Name this process as one of the mount of a device, until the socket is closed.

    Raises `OSError`.
    """
    major, minor = device
    pid = os.getpid()
    words = [_PREFIX, f"{major}:{minor}", role, pid, _start_of(pid), *connections]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind("\0" + " ".join(map(str, words)))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def announced(state: Mapping[str, Any], role: str) -> socket.socket | None:
    """Name this process by the state of a mount; None, and a line in the log, if that fails.

    A mount works without names, and a server of a former version tells no device.
    """
    if "device" not in state:
        return None
    try:
        return announce(state["device"], role, state.get("connections", []))
    except OSError as error:
        log.warning("this %s cannot be found if it does not answer: %s", role, error)
        return None


def daemons_of(device: tuple[int, int]) -> list[Daemon]:
    """Return the processes of the mount of a device, supervisors first; wait for none."""
    beginning = f"@{_PREFIX} {device[0]}:{device[1]} "
    lines = _NAMES.read_text(errors="replace").splitlines()
    names = {line[line.index(beginning) :] for line in lines if beginning in line}
    found = [daemon for name in names if (daemon := _vouched_for(name)) is not None]
    return sorted(found, key=lambda daemon: daemon.role != SUPERVISOR)


def _vouched_for(name: str) -> Daemon | None:
    """Return the process that a name tells of, if it is the one that listens."""
    try:
        _, _, role, pid, started, *connections = name.split()
        numbers = tuple(map(int, connections))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            connection.connect("\0" + name[1:])
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        listening, uid, _ = _PEER.unpack(peer)
        if listening != int(pid) or _start_of(listening) != int(started):
            return None
    except (OSError, ValueError):
        return None
    return Daemon(listening, uid, role, numbers, int(started))


def process_state(pid: int) -> str:
    """Return the letter of a process's state, such as T (stopped) and Z (ended); "" without it."""
    with suppress(OSError):
        return _fields_of(pid)[0]
    return ""


def _start_of(pid: int) -> int:
    return int(_fields_of(pid)[19])


def _fields_of(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the state on."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()

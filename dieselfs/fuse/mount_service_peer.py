"""The process at the other end of a connection to the mount service, as the kernel knows it."""

from __future__ import annotations

import os
import select
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError

_PEER_PIDFD: Final = 77
"""SO_PEERPIDFD, Linux 6.5."""
_CREDENTIALS: Final = struct.Struct("=iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, as it was when it connected."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The credentials that the kernel keeps of a peer."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


def check_namespace(connection: socket.socket) -> None:
    """Raise `MountError` unless the peer sees the mounts that the service sees.

    The pidfd makes sure that the process asked about is the peer and not a later one of its number.
    """
    pidfd = connection.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
    try:
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
        pid = next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)
        theirs = os.readlink(f"/proc/{pid}/ns/mnt") if pid > 0 else ""
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        has_ended = bool(waiting.poll(0))
    except OSError:
        theirs, has_ended = "", True
    finally:
        os.close(pidfd)
    if has_ended or theirs != os.readlink("/proc/self/ns/mnt"):
        raise MountError(
            "this process has a mount namespace of its own, as in a container",
            "mount on the host, or use --front fuse",
        )

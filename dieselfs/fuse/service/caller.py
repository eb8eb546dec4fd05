"""The process at the other end of a connection to the mount service, as the kernel knows it."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Final, NamedTuple

from dieselfs.errors import MountError

_PEER_PIDFD: Final = 77
"""SO_PEERPIDFD, Linux 6.5."""
_CREDENTIALS: Final = struct.Struct("=iII")


class Peer(NamedTuple):
    """The process at the other end of a connection, as it was when it connected."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials that the kernel keeps of a peer."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


def check_namespace(connection: socket.socket) -> None:
    """Raise `MountError` unless the peer sees the mounts that the service sees.

    The pidfd names the peer itself: if the peer is alive after its namespace was read, that
    namespace was not of a later process with the peer's number.
    """
    pidfd = connection.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
    try:
        theirs = os.readlink(f"/proc/{peer_of(connection).pid}/ns/mnt")
        has_ended = bool(select.select([pidfd], [], [], 0)[0])
    except OSError:
        theirs, has_ended = "", True
    finally:
        os.close(pidfd)
    if has_ended or theirs != os.readlink("/proc/self/ns/mnt"):
        raise MountError(
            "this process has a mount namespace of its own, as in a container",
            "mount on the host, or use --front fuse",
        )

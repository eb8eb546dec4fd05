"""Unix sockets that keep packets apart (SOCK_SEQPACKET) that carry `messages`."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

from dieselfs.node_memory.messages import MAX_PACKET_BYTES, Message, decode, encode

_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("=iII")
"""struct ucred of unix(7): pid, uid, gid."""

_TIMEVAL: Final = struct.Struct("@ll")
"""struct timeval of socket(7): seconds, microseconds."""


def listen(path: Path) -> socket.socket:
    """A non-blocking listening socket; what was at `path` before is gone. `OSError`."""
    path.unlink(missing_ok=True)
    listening = _made()
    try:
        listening.bind(os.fspath(path))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def connect(path: Path, timeout_s: float) -> socket.socket:
    """A connection whose operations time out. `OSError` if nobody listens."""
    connection = _made()
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, or that listened. The kernel vouches for it."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def send(connection: socket.socket, message: Message, flags: int = 0) -> None:
    """Whole or not at all. `OSError`: `BlockingIOError` if it would have to wait and may not."""
    connection.send(encode(message), flags | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, flags: int = 0) -> Message:
    """The next message. `OSError`: `ConnectionError` when the other side is gone; `BadMessage`."""
    packet = connection.recv(MAX_PACKET_BYTES + 1, flags)  # a longer one is cut, and refused
    if not packet:
        raise ConnectionResetError("the other side has closed the connection")
    return decode(packet)


def limit_sends(connection: socket.socket, timeout_s: float) -> None:
    """Let a send that waits for longer fail with `BlockingIOError`; receiving waits as long as before."""
    seconds, rest = divmod(timeout_s, 1)
    limit = _TIMEVAL.pack(int(seconds), int(rest * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def ask(connection: socket.socket, message: Message) -> Message:
    """Send, and wait for the answer."""
    send(connection, message)
    return receive(connection)


def _made() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

"""Unix sockets that keep packets apart (SOCK_SEQPACKET) and carry `messages`."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

from dieselfs.cache.wire.local_messages import MAX_PACKET_BYTES, Message, decode, encode

_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("=iII")
"""The struct ucred of unix(7): pid, uid, gid."""

_TIMEVAL: Final = struct.Struct("@ll")
"""The struct timeval of socket(7): seconds, microseconds."""


def listen(path: Path) -> socket.socket:
    """Return a non-blocking listening socket. Raises `OSError`.

    A file that was at `path` before is removed.
    """
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
    """Return a connection whose operations time out. Raises `OSError` if no process listens."""
    connection = _made()
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process that connected, or that listened.

    The kernel vouches for them.
    """
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def send(connection: socket.socket, message: Message, flags: int = 0) -> None:
    """Send the message whole or not at all.

    Raises `OSError`: `BlockingIOError` if the call would have to wait and may not.
    """
    connection.send(encode(message), flags | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, flags: int = 0) -> Message:
    """Return the next message.

    Raises `OSError` (`ConnectionError` when the other side is gone), or `BadPacket`.
    """
    packet = connection.recv(MAX_PACKET_BYTES + 1, flags)  # a longer packet is cut, and refused
    if not packet:
        raise ConnectionResetError("the other side has closed the connection")
    return decode(packet)


def limit_sends(connection: socket.socket, timeout_s: float) -> None:
    """Let a send that waits for longer than `timeout_s` fail with `BlockingIOError`.

    The time limit for receiving stays as it is.
    """
    seconds, rest = divmod(timeout_s, 1)
    limit = _TIMEVAL.pack(int(seconds), int(rest * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def ask(connection: socket.socket, message: Message) -> Message:
    """Send a message and return the answer."""
    send(connection, message)
    return receive(connection)


def _made() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

"""Messages on a socket between two DieselFS processes: eight bytes of length, then the content."""

from __future__ import annotations

import socket
import struct
from typing import Final

_LENGTH: Final = struct.Struct("<Q")


def send_message(connection: socket.socket, message: bytes) -> None:
    """Send one message."""
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def receive_message(connection: socket.socket) -> bytes:
    """Return the next message; raise `EOFError` if the other side has ended."""
    return bytes(_receive(connection, _LENGTH.unpack(_receive(connection, _LENGTH.size))[0]))


def _receive(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError("the other process has closed the connection")
        done += count
    return data

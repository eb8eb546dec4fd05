"""Messages on a socket between two processes of ours: eight bytes of length, then so many bytes."""

from __future__ import annotations

import socket
import struct
from typing import Final

_LENGTH: Final = struct.Struct("<Q")


def send_message(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def receive_message(connection: socket.socket) -> bytes:
    """`EOFError` if the other side has ended."""
    return bytes(_receive(connection, _LENGTH.unpack(_receive(connection, _LENGTH.size))[0]))


def _receive(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError("the other process has ended")
        done += count
    return data

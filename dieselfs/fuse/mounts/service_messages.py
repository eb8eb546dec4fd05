"""The packets between `dlcmd mountd` and its clients: a JSON object each, with descriptors.

docs/mountd.md lists the requests and answers.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dieselfs.errors import MountError

MAX_MESSAGE_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 16
"""Blobs of 16 TiB each, or the two descriptors of a request."""


class BadServiceMessage(MountError):
    """A packet that this protocol does not define, or the end of the conversation."""


def send(
    connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Send one packet. The descriptors stay the caller's."""
    data = json.dumps(message).encode()
    assert len(data) <= MAX_MESSAGE_BYTES
    socket.send_fds(connection, [data], list(descriptors))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next packet; its descriptors are the caller's, close-on-exec.

    Raises `BadServiceMessage` and `OSError`.
    """
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content)
    try:
        return _decoded(data, flags), list(descriptors)
    except BadServiceMessage:
        close_all(descriptors)
        raise


def close_all(descriptors: Sequence[int]) -> None:
    """Close every descriptor."""
    for descriptor in descriptors:
        os.close(descriptor)


def _decoded(data: bytes, flags: int) -> dict[str, Any]:
    if not data:
        raise BadServiceMessage("the other side has closed the connection")
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise BadServiceMessage("a message is too long")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise BadServiceMessage("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BadServiceMessage("a message is not an object")
    return message

"""The message of a mount to its starter that it answers: systemd's protocol, sd_notify(3).

The same datagram serves a systemd unit of `Type=notify` and our own background start.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

log = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = b"READY=1"


def announce_ready() -> None:
    """Send READY=1 if a process waits for it. Programs started from here do not send it again."""
    address = os.environ.pop(VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(READY, address)
    except OSError as error:  # the process that waited has gone; the mount works
        log.warning("cannot report to %s that the mount is ready: %s", address, error.strerror)

"""How a mount tells whoever started it that it answers: systemd's notification protocol,
sd_notify(3).

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
    """Send READY=1 if someone waits for it. Programs started from here are not to send it again."""
    address = os.environ.pop(VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(READY, address)
    except OSError as error:  # whoever waited has gone; the mount is good all the same
        log.warning("nobody at %s hears that the mount is ready: %s", address, error.strerror)

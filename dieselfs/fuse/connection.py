"""Whether the kernel still has a mount's connection: it has not when it was unmounted and nobody uses it any more, or was aborted.

pyfuse3 notices too, by its next read, but then waits for all requests that are being answered. Nobody waits for those any more, and those that wait
for a store that is out would keep the daemon for minutes.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Final

import trio

_DEVICE: Final = "/dev/fuse"
INTERVAL_S: Final = 0.5


async def until_lost() -> None:
    """Return when this process's one connection is lost. Looks every `INTERVAL_S`: a system call of 1 µs."""
    fd = _descriptor()
    if fd is None:
        await trio.sleep_forever()
    waiting = select.poll()
    waiting.register(fd, 0)  # errors are told in any case
    while True:
        if waiting.poll(0):
            return
        await trio.sleep(INTERVAL_S)


def _descriptor() -> int | None:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link) == _DEVICE:
                return int(link.name)
        except OSError:  # the folder's own descriptor
            continue
    return None

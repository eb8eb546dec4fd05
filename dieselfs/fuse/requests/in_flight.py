"""The requests that a server has received and not answered, in memory that outlives it.

Before Linux 6.9 the kernel cannot send them again to the next server. The next server answers them
with EIO, so that no reader waits forever. Each request takes a slot of 8 bytes, about 0.3 µs; a
request that finds no free slot is not noted.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from typing import Final, Self

SLOTS: Final = 4096


class InFlight:
    """A table of requests in flight.

    Thread-safe: a slot belongs to one request, and a deque hands slots out.
    """

    def __init__(self, fd: int) -> None:
        """Open a table. `fd` is a file in memory of `SLOTS` numbers; it stays the caller's."""
        self.fd = fd
        self._slots = memoryview(mmap.mmap(fd, SLOTS * 8)).cast("Q")
        self._free = deque(number for number in range(SLOTS) if not self._slots[number])
        self._slot_of: dict[int, int] = {}

    @classmethod
    def new(cls) -> Self:
        """Return an empty table."""
        fd = os.memfd_create("dieselfs-in-flight", os.MFD_CLOEXEC)
        os.ftruncate(fd, SLOTS * 8)
        return cls(fd)

    def begin(self, unique: int) -> None:
        """Note that a request was received."""
        try:
            slot = self._free.popleft()
        except IndexError:
            return
        self._slots[slot] = unique
        self._slot_of[unique] = slot

    def end(self, unique: int) -> None:
        """Note that a request is answered."""
        slot = self._slot_of.pop(unique, None)
        if slot is not None:
            self._slots[slot] = 0
            self._free.append(slot)

    def begun(self) -> list[int]:
        """Return the requests that were noted here and are not answered."""
        return list(self._slot_of)

    def left(self) -> list[int]:
        """Return the requests that an earlier server left unanswered, and clear the table."""
        found = [(slot, unique) for slot, unique in enumerate(self._slots) if unique]
        for slot, _ in found:
            self._slots[slot] = 0
        self._free = deque(range(SLOTS))
        return [unique for _, unique in found]

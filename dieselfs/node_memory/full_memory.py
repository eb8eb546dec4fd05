"""What one process knows of its node's memory being full: files of other nodes' chunks are then read from their owners, past the master.

To ask the master for each such file would cost more than the file. So when it had no room for a chunk of another node, nobody asks it for another one for a
second; then one reader does. Meanwhile the folder is looked into for each chunk ten times a second: what has come in is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FULL_S: Final = 1.0
LOOK_S: Final = 0.1
"""A look takes some 5 µs: a failed open, and the news."""


class FullMemory:
    """Thread-safe: what two threads do to it at a time costs a look or a question more."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = 0.0
        self._absent: dict[bytes, float] = {}
        """Until when each chunk, by its id, is known not to be in the folder, and to be another node's."""

    def had_no_room(self) -> None:
        """For a chunk of another node."""
        self._until = self._now() + FULL_S

    def had_room(self) -> None:
        """For one."""
        self._until = 0.0

    def is_full(self) -> bool:
        """50 ns as long as there was always room."""
        return self._until > 0.0 and self._now() < self._until

    def may_ask(self) -> bool:
        """Whether the master is to be asked for a chunk of another node; when the time is over, one is told so, and others wait for what he finds out."""
        if self._until == 0.0:
            return True
        now = self._now()
        if now < self._until:
            return False
        self._until = now + FULL_S
        self._absent = {}
        return True

    def is_absent(self, chunk: bytes) -> bool:
        """Whether that was noted a moment ago. 0.1 µs."""
        until = self._absent.get(chunk)
        return until is not None and self._now() < min(until, self._until)

    def note_absent(self, chunk: bytes) -> None:
        self._absent[chunk] = self._now() + LOOK_S

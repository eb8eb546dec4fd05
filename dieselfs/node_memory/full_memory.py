"""What one process knows of its node's memory being full: files of other nodes' chunks are then read from their owners, past the master.

To ask the master for each such file would cost more than the file. So when it had no room for a chunk of another node, nobody asks it for another one for a
second; then one reader does. What comes into the folder meanwhile is found: the folder's time is looked at ten times a second, and when that has changed, the
folder is looked into once for each chunk that is read (some 5 µs: a failed open, and the news of what was evicted).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FULL_S: Final = 1.0
FULL_WITH_PLAN_S: Final = 0.02
"""Where a plan is followed room comes by and by, and the chunk with it: a few hundred files later it is asked for again."""
LOOK_S: Final = 0.1
_TICK_NS: Final = 50_000_000
"""A folder's time is that of the kernel's last tick: another change within the same does not show."""


class CacheBypass:
    """Thread-safe: what two threads do to it at a time costs a look or a question more."""

    def __init__(
        self, folder_changed_ns: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder_changed_ns`: when a file last came into the folder, or left it (CLOCK_REALTIME). May raise `OSError`."""
        self._folder_changed_ns = folder_changed_ns
        self._now = now
        self.trusted_s = FULL_S
        """How long it counts that there was no room."""
        self._until = 0.0
        self._absent: set[bytes] = set()
        """The chunks, by their ids, that are known not to be in the folder, and to be other nodes'."""
        self._look_at = 0.0
        self._seen_ns = 0

    def note_full(self) -> None:
        """For a chunk of another node."""
        self._until = self._now() + self.trusted_s

    def note_room(self) -> None:
        """For one."""
        self._until = 0.0

    def is_full(self) -> bool:
        """50 ns as long as there was always room."""
        return self._until > 0.0 and self._now() < self._until

    def may_ask(self) -> bool:
        """Whether the master is to be asked for a chunk of another node. When the time is over one is told so, and the others wait for what it finds out."""
        if self._until == 0.0:
            return True
        now = self._now()
        if now < self._until:
            return False
        self._until = now + self.trusted_s
        self._absent = set()  # a view may have changed, too
        return True

    def is_absent(self, chunk: bytes) -> bool:
        """Whether that was noted, and memory is still full. 0.1 µs, and a `stat` every 0.1 s."""
        if chunk not in self._absent:
            return False
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        return now < self._until and chunk in self._absent

    def note_absent(self, chunk: bytes) -> None:
        """After it was looked for."""
        self._absent.add(chunk)

    def forget(self, chunk: bytes) -> bool:
        """It may be this node's now. Whether it was noted."""
        noted = chunk in self._absent
        self._absent.discard(chunk)
        return noted

    def _look(self) -> None:
        try:
            changed_ns = self._folder_changed_ns()
        except OSError:
            return  # it is gone, and nothing comes into it
        if changed_ns != self._seen_ns:
            self._absent = set()
        if time.time_ns() - changed_ns > _TICK_NS:
            self._seen_ns = changed_ns

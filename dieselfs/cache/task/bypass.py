"""The cache bypass: when a process reads other nodes' chunks without asking its master.

While node memory is full, files of chunks that another node owns are read from their owners. To ask
the master for each such file would cost more than the file. So when the master had no room for a
chunk of another node, no thread asks it for another one for a second; then one reader does.

Chunks that come into the folder meanwhile are found: the folder's time is checked ten times a
second. When it has changed, the folder is searched once for each chunk that is read (some 5 µs: a
failed open, and the pending cache events).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FULL_S: Final = 1.0
"""The time for which a refusal counts without a plan."""
FULL_WITH_PLAN_S: Final = 0.02
"""The time for which a refusal counts with a plan.

With a plan, memory frees up gradually, so the chunk is requested again a few hundred files later.
"""
LOOK_S: Final = 0.1
"""The time between two checks of the folder's time."""
_TICK_NS: Final = 50_000_000
"""The longest kernel tick that is assumed.

A folder's time is that of the kernel's last tick: a second change within the same tick does not
show.
"""


class CacheBypass:
    """One process's knowledge that its node memory is full.

    Thread-safe: threads that change it at the same time cost one more check or request.
    """

    def __init__(
        self, folder_changed_ns: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder_changed_ns` returns when a file last entered or left the folder (CLOCK_REALTIME).

        It may raise `OSError`.
        """
        self._folder_changed_ns = folder_changed_ns
        self._now = now
        self.trusted_s = FULL_S
        """The time for which a refusal counts."""
        self._until = 0.0
        self._absent: set[bytes] = set()
        """The ids of chunks that belong to other nodes and are known not to be in the folder."""
        self._look_at = 0.0
        self._seen_ns = 0

    def note_full(self) -> None:
        """Note that there was no room for a chunk of another node."""
        self._until = self._now() + self.trusted_s

    def note_room(self) -> None:
        """Note that there was room for a chunk of another node."""
        self._until = 0.0

    def is_full(self) -> bool:
        """Return whether a refusal still counts. 50 ns as long as there was always room."""
        return self._until > 0.0 and self._now() < self._until

    def may_ask(self) -> bool:
        """Return whether the caller is to ask the master for a chunk of another node.

        When the time of a refusal is over, one caller gets True. The others get False until it
        knows the answer.
        """
        if self._until == 0.0:
            return True
        now = self._now()
        if now < self._until:
            return False
        self._until = now + self.trusted_s
        self._absent = set()  # the view may have changed, too
        return True

    def is_absent(self, chunk: bytes) -> bool:
        """Return whether the chunk was noted as absent and memory is still full.

        It takes 0.1 µs, and a `stat` every 0.1 s.
        """
        if chunk not in self._absent:
            return False
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        return now < self._until and chunk in self._absent

    def note_absent(self, chunk: bytes) -> None:
        """Note that the chunk was not found in the folder."""
        self._absent.add(chunk)

    def forget(self, chunk: bytes) -> bool:
        """Remove the note that a chunk is absent; return whether there was one.

        Call it when the chunk may belong to this node now.
        """
        noted = chunk in self._absent
        self._absent.discard(chunk)
        return noted

    def _look(self) -> None:
        try:
            changed_ns = self._folder_changed_ns()
        except OSError:
            return  # the folder is gone, and nothing comes into it
        if changed_ns != self._seen_ns:
            self._absent = set()
        if time.time_ns() - changed_ns > _TICK_NS:
            self._seen_ns = changed_ns

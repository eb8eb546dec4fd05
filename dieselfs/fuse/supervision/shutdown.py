"""The shutdown of a mount within 5 s: one deadline that all parts share (docs/decisions/0010).

Each part waits for its work under way, which may hang with the store. The parts share the remaining
time, so their time-outs do not add up. A part with no time left leaves its work to the end of the
process. This is as good as a kill, which everything here survives: a lease expires, and node memory
is removed or taken over.

The kernel ends a process that hangs nevertheless, in whatever code. A process that serves the mount
alone asks for that (`forced`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

ORDERLY_S: Final = 4.0
"""The time for all parts together.

The end of the interpreter takes some 0.2 s more on an idle machine.
"""
FORCED_S: Final = 4.8
"""The time after which SIGALRM ends the process.

It is no thread of this process: a thread could wait for the interpreter's lock, or be frozen with
the interpreter.
"""


class Shutdown:
    """The deadline of a shutdown. Before `begin` every part may take its own time."""

    def __init__(
        self, *, forced: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """With `forced`, this process ends at most `FORCED_S` after `begin`."""
        self._forced = forced
        self._clock = clock
        self._deadline: float | None = None
        self._first: list[Callable[[], object]] = []

    def when_begun(self, call: Callable[[], object]) -> None:
        """Call `call` when the shutdown begins, before any part waits. It must not wait itself."""
        self._first.append(call)

    def begin(self) -> None:
        """Start the shutdown. Call it in the main thread; only the first call counts."""
        if self._deadline is None:
            self._deadline = self._clock() + ORDERLY_S
            if self._forced:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, FORCED_S)
            for call in self._first:
                call()

    def left_s(self, most_s: float) -> float:
        """Return how long a part may wait that would wait `most_s`; 0 if the time is over."""
        if self._deadline is None:
            return most_s
        return min(most_s, max(0.0, self._deadline - self._clock()))

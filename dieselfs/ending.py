"""The end of a mount: one deadline that all its parts share, so that it is over in 5 s (docs/decisions/0010-faults.md).

Each part waits for what it has under way, which may hang with the store. What one has waited is what the next ones lack: their time-outs
don't add up. A part that has no time left leaves what is under way to the end of the process, which is as good as being killed, and that
everything here survives: a lease ends by time, and node memory is swept or adopted.

What hangs nevertheless, in whatever code, is ended by the kernel: a process that is the mount's alone asks for that (`forced`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

ORDERLY_S: Final = 4.0
"""For all parts together. The end of the interpreter takes some 0.2 s more on an idle machine."""
FORCED_S: Final = 4.8
"""Then SIGALRM ends the process. Not a thread of ours: it could wait for the interpreter's lock, or be frozen with the interpreter."""


class Shutdown:
    """Nothing has ended before `begin`; until then every part may take its own time."""

    def __init__(
        self, *, forced: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`forced`: when it has begun, this process does not live longer than `FORCED_S`."""
        self._forced = forced
        self._clock = clock
        self._deadline: float | None = None

    def begin(self) -> None:
        """The mount ends from now on. Of the main thread; only the first call counts."""
        if self._deadline is None:
            self._deadline = self._clock() + ORDERLY_S
            if self._forced:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, FORCED_S)

    def left_s(self, most_s: float) -> float:
        """How long a part may wait that would wait `most_s`; 0 if the time is over."""
        if self._deadline is None:
            return most_s
        return min(most_s, max(0.0, self._deadline - self._clock()))

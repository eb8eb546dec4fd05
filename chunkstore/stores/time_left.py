"""How long the operation that this thread is in may still take: known to everything that waits on its behalf.

As a cancel scope of trio, for blocking code: whoever begins an operation sets its end, and whoever waits inside of it, for a turn, a pause or
an answer, waits no longer.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

_of_thread = threading.local()


class OperationEnds:
    """Within the `with` block, the operation of this thread ends after `timeout_s`, or with the one around it if that is sooner."""

    __slots__ = ("_outer", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        self._outer: float | None = getattr(_of_thread, "end", None)
        end = time.monotonic() + self._timeout_s
        _of_thread.end = end if self._outer is None else min(end, self._outer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _of_thread.end = self._outer


def time_left_s(most_s: float) -> float:
    """Seconds until the operation ends, not below 0; at most `most_s`, also if there is no operation."""
    end: float | None = getattr(_of_thread, "end", None)
    return most_s if end is None else max(0.0, min(most_s, end - time.monotonic()))

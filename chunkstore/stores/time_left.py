"""The time that the current operation of a thread may still take, known to every wait in it.

It works like a cancel scope of trio, for blocking code. The caller that begins an operation sets
its end. Every wait inside the operation, for a turn, a pause or an answer, ends by then.
"""

from __future__ import annotations

import threading
import time

_of_thread = threading.local()


class OperationEnds:
    """A `with` block that ends this thread's operation after `timeout_s`.

    An enclosing operation that ends earlier counts instead.
    """

    __slots__ = ("_outer", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        self._outer: float | None = getattr(_of_thread, "end", None)
        end = time.monotonic() + self._timeout_s
        _of_thread.end = end if self._outer is None else min(end, self._outer)

    def __exit__(self, *error: object) -> None:
        _of_thread.end = self._outer


def lengthen_operation(seconds: float) -> None:
    """Move the end of this thread's operation, if there is one; an enclosing one keeps its end."""
    end: float | None = getattr(_of_thread, "end", None)
    if end is not None:
        _of_thread.end = end + seconds


def time_left_s(most_s: float) -> float:
    """Return the seconds until the operation ends, at least 0 and at most `most_s`.

    Without an operation the result is `most_s`.
    """
    end: float | None = getattr(_of_thread, "end", None)
    return most_s if end is None else max(0.0, min(most_s, end - time.monotonic()))

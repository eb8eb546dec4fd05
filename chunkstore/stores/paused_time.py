"""The time of a thread without its pauses for byte budgets.

The time that a store took says how fast the store is, and whether an SSD is slower than it. The
time that a thread has waited for its byte budget is not the store's. So measurements that go around
a `BudgetedStore` take the difference of two `working_time()`s, in the thread that reads.
"""

from __future__ import annotations

import threading
import time

_of_thread = threading.local()


def working_time() -> float:
    """Return the monotonic clock, less the seconds that this thread has paused."""
    paused_s: float = getattr(_of_thread, "paused_s", 0.0)
    return time.monotonic() - paused_s


def paused(seconds: float) -> None:
    """Note that this thread has just paused for so long."""
    _of_thread.paused_s = getattr(_of_thread, "paused_s", 0.0) + seconds

"""The bytes that a thread has fetched of the store for the request that it works at.

A cache node's reads count them. The server takes the difference over a piece of work, so an answer
can say what was fetched for it, and the client pays for that from its job's byte budget.
"""

from __future__ import annotations

import threading

_of_thread = threading.local()


def fetched_bytes() -> int:
    """Return the bytes that this thread has fetched so far."""
    found: int = getattr(_of_thread, "fetched", 0)
    return found


def count_fetched(size_bytes: int) -> None:
    """Note that this thread has fetched so many bytes more."""
    _of_thread.fetched = fetched_bytes() + size_bytes

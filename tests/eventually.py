"""Waiting for what another thread or process does: the one place where a test sleeps until a
condition holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
"""A machine that runs tests and much else stalls for many seconds."""
_SHORTEST_S, _LONGEST_S = 0.001, 0.02

_Found = TypeVar("_Found")


def eventually(
    condition: Callable[[], _Found],
    what: str = "the condition holds",
    timeout_s: float = PATIENCE_S,
    *,
    ignored: type[Exception] | tuple[type[Exception], ...] = (),
) -> _Found:
    """Return the first true value of `condition`. A call that raises one of `ignored` is
    repeated."""
    began = time.monotonic()
    while True:
        error: Exception | None = None
        try:
            if found := condition():
                return found
        except ignored as raised:
            error = raised
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}") from error
        time.sleep(min(_SHORTEST_S + waited_s / 8, _LONGEST_S))


def scaled_by_load(seconds: float) -> float:
    """Return how long a machine as busy as this one may take for what an idle one does in
    `seconds`."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))

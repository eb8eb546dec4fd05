"""The one door from trio to threads: a whole blocking operation is sent through it, under a limit.

A crossing costs about 80 µs, so whatever is answered from memory or the snapshot's map stays out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class WorkerThreads:
    """At most `limit` blocking calls at a time; further callers wait their turn, in order."""

    def __init__(self, limit: int) -> None:
        self._limiter = trio.CapacityLimiter(limit)

    async def run(
        self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result:
        """Run what surely ends. A cancelled caller waits for it, so that what it uses may be closed
        afterwards."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._limiter)

    async def run_abandonable(
        self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result:
        """Run what may hang, such as a read from a store. A cancelled caller leaves at once; the
        thread goes on, its result is dropped, and it does not keep the process alive."""
        return await trio.to_thread.run_sync(
            function, *arguments, limiter=self._limiter, abandon_on_cancel=True
        )

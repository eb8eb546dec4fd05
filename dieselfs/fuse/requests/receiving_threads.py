"""The threads of a connection: some receive requests while others answer requests that wait.

A thread whose request must wait for a store gives up its place among the receiving threads, and
takes one again when it has answered. So a request that waits changes no thread, and at least one
thread receives at any time. A place that was given up is filled when the next request comes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

THREADS: Final = 2
"""One more than one, so that a request does not wait behind a large reply."""
MOST_BY_CORES: Final = 4
"""The most threads that are useful: answers are written without the interpreter's lock, and made
with it. A request wakes all threads that wait for one."""
IDLE_S: Final = 10.0
"""The time after which a thread without a place ends."""

Work: TypeAlias = Callable[[], object]
Receive: TypeAlias = Callable[[], Work | None]
"""A function that receives and handles one request; it returns work that waits, for its thread."""


def threads_by_cores() -> int:
    """Return how many threads receive READs on this machine, if nobody says otherwise."""
    return min(max(len(os.sched_getaffinity(0)), THREADS), MOST_BY_CORES)


class ReceivingThreads:
    """The threads of one connection, from `start` to `stop`. Daemon threads."""

    def __init__(self, receiver: Callable[[], Receive], places: int = THREADS) -> None:
        """`receiver` is called once for each thread, which calls what it returns until `stop`.

        It may raise `OSError`: then there is one thread less. `places` threads receive at a time.
        """
        self._receiver, self._places = receiver, places
        lock = threading.Lock()
        self._may_receive = threading.Condition(lock)
        self._has_ended = threading.Condition(lock)
        self._receiving = 0
        """The threads that hold a place, or were given one."""
        self._idle = self._given = self._started = 0
        self.is_stopped = False

    def start(self) -> None:
        """Start to receive."""
        with self._may_receive:
            for _ in range(self._places):
                self._fill_place()

    def note_request(self) -> None:
        """Note that a request was received: a place that was given up is filled again."""
        if self._receiving < self._places:
            with self._may_receive:
                if self._receiving < self._places and not self.is_stopped:
                    self._fill_place()

    def end(self) -> bool:
        """Have the threads end, each when it has handled its request; False if they were told."""
        with self._may_receive:
            is_first, self.is_stopped = not self.is_stopped, True
            self._may_receive.notify_all()
            return is_first

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until no thread receives any more; False if one still does after so long.

        Requests that wait may still be answered.
        """
        with self._has_ended:
            return self._has_ended.wait_for(lambda: not self._receiving, timeout_s)

    def _run(self, receive: Receive) -> None:
        has_place = True
        while has_place and not self.is_stopped:
            work = receive()
            if work is not None:
                self._give_up_place()
                work()
                del work  # it may hold a chunk's memory
                has_place = self._take_place()
        if has_place:
            self._leave_place()

    def _give_up_place(self) -> None:
        with self._may_receive:
            self._leave()
            if not self._receiving and not self.is_stopped:
                self._fill_place()

    def _leave_place(self) -> None:
        with self._may_receive:
            self._leave()

    def _take_place(self) -> bool:
        """Return True when this thread may receive again, False if it must end."""
        with self._may_receive:
            if self._receiving < self._places:
                self._receiving += not self.is_stopped
                return not self.is_stopped
            self._idle += 1
            self._may_receive.wait_for(lambda: self._given or self.is_stopped, IDLE_S)
            self._idle -= 1
            is_given = self._given > 0
            self._given -= is_given
            return is_given

    # The methods below are called with the lock held.

    def _leave(self) -> None:
        self._receiving -= 1
        self._has_ended.notify_all()

    def _fill_place(self) -> None:
        self._receiving += 1
        if self._idle > self._given:
            self._given += 1
            self._may_receive.notify()
            return
        self._started += 1
        name = f"fuse-{self._started}"
        try:
            args = (self._receiver(),)
            threading.Thread(target=self._run, args=args, name=name, daemon=True).start()
        except (OSError, RuntimeError) as error:  # too many descriptors, or threads
            self._receiving -= 1
            log.warning("requests wait for a thread: %s", error)

"""A thread that passes its exception to the threads that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundThread(threading.Thread):
    """A thread that runs `work` at once.

    `join` and `raise_failure` raise the exception of `work`; `wait` does not. A `join` or `wait`
    that a `KeyboardInterrupt` ends may be repeated. `threading.Thread.join` takes the thread for
    ended then (CPython issue 90882), so this class has a lock of its own.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._failure: BaseException | None = None
        self._ended = False
        self._running = threading.Lock()
        self._running.acquire()
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error
        finally:
            self._ended = True  # before the release: an interrupted waiter may keep the lock
            self._running.release()

    def is_alive(self) -> bool:
        """Return True until `work` has ended."""
        return not self._ended

    def raise_failure(self) -> None:
        """Raise the exception of `work`, if it has raised one."""
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end, or for `timeout` seconds, without raising the exception of `work`."""
        if not self._ended and self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or for `timeout` seconds; raise the exception of `work`."""
        self.wait(timeout)
        self.raise_failure()

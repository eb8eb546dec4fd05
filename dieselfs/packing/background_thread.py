"""A thread that passes its exception to the threads that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundThread(threading.Thread):
    """A thread that runs `work` at once.

    `join` and `raise_failure` raise the exception of `work`; `wait` does not.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error

    def raise_failure(self) -> None:
        """Raise the exception of `work`, if it has raised one."""
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait for the end, without raising the exception of `work`."""
        super().join()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or for `timeout` seconds; raise the exception of `work`."""
        super().join(timeout)
        self.raise_failure()

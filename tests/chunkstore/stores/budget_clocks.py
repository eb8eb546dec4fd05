"""Clocks for byte budgets: waiting moves the one, the test moves the other."""

from __future__ import annotations

import threading

from tests.eventually import PATIENCE_S, eventually


class WaitingClock:
    """Waiting moves it: for one thread."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        assert seconds is not None
        self.now += seconds


class SteppedClock:
    """The test moves it: for threads, which look again at each step."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: set[threading.Event] = set()

    def __call__(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        self._events.add(event)
        assert event.wait(PATIENCE_S)

    def move_to(self, now: float) -> None:
        self.now = now
        for event in tuple(self._events):
            event.set()


class Takers:
    """Threads that take from a budget one after the other, and note in which order they passed."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, name: str, take: object) -> None:
        def run() -> None:
            take()  # type: ignore[operator]
            self.passed.append(name)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def have_passed(self, *names: str) -> None:
        eventually(lambda: self.passed == list(names))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

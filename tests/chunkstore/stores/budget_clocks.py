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
        self._asleep: set[threading.Event] = set()
        self._of_thread = threading.local()
        """The first time that each thread has seen since it last waited."""

    def __call__(self) -> float:
        now = self.now
        if self._seen() is None:
            self._of_thread.seen = now
        return now

    def _seen(self) -> float | None:
        return getattr(self._of_thread, "seen", None)

    @property
    def asleep(self) -> int:
        """The number of threads that look at the clock only when they are woken."""
        return len(self._asleep)

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        self._events.add(event)
        seen, self._of_thread.seen = self._seen(), None
        if seen not in (None, self.now):  # a step since then may not have set the event
            return
        self._asleep.add(event)
        assert event.wait(PATIENCE_S)
        self._asleep.remove(event)

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

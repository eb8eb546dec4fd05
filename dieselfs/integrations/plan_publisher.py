"""Keeps whoever fetches ahead informed of the order: this epoch's plan while it is read, the next one's before it is asked for.

The process that reads publishes. A copy of the publisher in a forked child has nothing of its parent's: it removes none of its plans,
and begins with plans of its own if it is the child that reads.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable

from dieselfs.plan.plan_file import PlanFile, ReadingPlan

Announce = Callable[[ReadingPlan, int, str], PlanFile | None]
"""Publish a plan: from which position on, and the id of the plan that comes before it. None if nobody follows it."""


class PlanPublisher:
    """The plans of one rank. For one thread at a time. Pickles without what it has published."""

    def __init__(self, announce: Announce | None) -> None:
        """Without `announce` nothing is published."""
        self._announce = announce
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._plans: dict[Hashable, PlanFile] = {}
        self._current: Hashable = None
        self._preparing: threading.Thread | None = None
        weakref.finalize(self, _remove_all, self._plans, self._pid)

    def __reduce__(self) -> tuple[object, ...]:
        return PlanPublisher, (self._announce,)

    def begin(self, key: Hashable, plan: Callable[[], ReadingPlan], position: int) -> None:
        """`plan` is read from now on, from `position`. What was published before ends, unless it was prepared under this very key."""
        if self._announce is None:
            return
        if os.getpid() != self._pid:
            self._start_anew()
        self._wait()
        prepared = key if key != self._current and not position else None
        for other in [other for other in self._plans if other != prepared]:
            self._plans.pop(other).remove()
        self._current = key
        if key not in self._plans:
            published = self._announce(plan(), position, "")
            if published is not None:
                self._plans[key] = published

    def prepare(self, key: Hashable, plan: Callable[[], ReadingPlan]) -> None:
        """Publish in the background what comes after the current plan, once. Does nothing if nobody follows the current one."""
        current, announce, plans = self._plans.get(self._current), self._announce, self._plans
        if announce is None or current is None or self._preparing is not None:
            return
        after = current.id

        def publish() -> None:
            following = announce(plan(), 0, after)
            if following is not None:
                plans[key] = following

        self._preparing = threading.Thread(target=publish, name="dieselfs-plan", daemon=True)
        self._preparing.start()

    def progress(self, position: int) -> None:
        """Files of the current plan that need not be kept at hand any more."""
        current = self._plans.get(self._current)
        if current is not None and position > current.position and os.getpid() == self._pid:
            current.position = position

    def close(self) -> None:
        """End what is published. May be called again, and `begin` after it."""
        self._wait()
        _remove_all(self._plans, self._pid)

    def _wait(self) -> None:
        if self._preparing is not None and os.getpid() == self._pid:
            self._preparing.join()
        self._preparing = None


def _remove_all(plans: dict[Hashable, PlanFile], pid: int) -> None:
    """A forked child's copy of the dictionary is its parent's."""
    if os.getpid() == pid:
        while plans:
            plans.popitem()[1].remove()

"""Publication of plans to the prefetcher.

They are this epoch's plan while it is read, and the next one's before it is read. The process that
reads publishes. A copy of the publisher in a forked child has nothing of its parent's: it removes
none of its plans, and begins with plans of its own if the child reads.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

from dieselfs.prefetch.announcement import Published, announce
from dieselfs.prefetch.plan_file import ReadingPlan

Announce = Callable[[ReadingPlan, int, str], Published | None]
"""A function that publishes a plan.

Its arguments are the plan, the first position, and the id of the plan that comes before it. The
result is None if nothing prefetches the plan.
"""


def listener_of(samples: Any, mount_root: Path | None) -> Announce | None:
    """Return the function that publishes plans of a dataset's files to whatever prefetches them.

    This is the mount that they are read from, or else the dataset itself, or one below a Subset.
    """
    if mount_root is not None:
        return partial(announce, mount_root)
    while not hasattr(samples, "announce") and hasattr(samples, "dataset"):
        samples = samples.dataset
    found: Announce | None = getattr(samples, "announce", None)
    return found


class PlanPublisher:
    """The plans of one rank. One thread at a time may use it.

    Plans are published in other threads, so that no caller waits for a plan to be laid out (0.5 s
    for 1.28 M files). The publisher pickles without its published plans.
    """

    def __init__(self, announce: Announce | None) -> None:
        """Create a publisher. Without `announce` nothing is published."""
        self._announce = announce
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._plans: dict[Hashable, Published] = {}
        self._current: Hashable = None
        self._position = 0
        self._next_is_prepared = False
        self._publishing: threading.Thread | None = None
        weakref.finalize(self, _remove_all, self._plans, self._pid)

    def __reduce__(self) -> tuple[object, ...]:
        return PlanPublisher, (self._announce,)

    def begin(self, key: Hashable, plan: Callable[[], ReadingPlan], position: int) -> None:
        """Note that `plan` is read from now on, from `position`.

        Earlier plans end, except one that was prepared under this very key.
        """
        if self._announce is None:
            return
        if os.getpid() != self._pid:
            self._reset()
        prepared = None if key == self._current or position else key
        self._current, self._position, self._next_is_prepared = key, position, False
        self._in_background(partial(self._publish, self._announce, key, plan, prepared))

    def prepare(self, key: Hashable, plan: Callable[[], ReadingPlan]) -> None:
        """Publish the plan after the current one, once.

        Does nothing if the current one is not prefetched.
        """
        if self._announce is None or self._next_is_prepared or os.getpid() != self._pid:
            return
        self._next_is_prepared = True
        self._in_background(partial(self._publish_next, self._announce, self._current, key, plan))

    def progress(self, position: int) -> None:
        """Publish the number of files of the current plan that need not be cached any more."""
        if position > self._position and os.getpid() == self._pid:
            self._position = position
            current = self._plans.get(self._current)
            if current is not None:
                current.position = position

    def close(self) -> None:
        """Remove the published plans. May be called again, and `begin` after it."""
        if os.getpid() == self._pid:
            if self._publishing is not None:
                self._publishing.join()
            _remove_all(self._plans, self._pid)
            self._current = None

    def _publish(
        self,
        announce: Announce,
        key: Hashable,
        plan: Callable[[], ReadingPlan],
        prepared: Hashable,
    ) -> None:
        for other in [other for other in self._plans if other != prepared]:
            self._plans.pop(other).remove()
        if key not in self._plans:
            published = announce(plan(), self._position, "")
            if published is not None:
                self._plans[key] = published

    def _publish_next(
        self,
        announce: Announce,
        current: Hashable,
        key: Hashable,
        plan: Callable[[], ReadingPlan],
    ) -> None:
        before = self._plans.get(current)
        if before is not None:
            published = announce(plan(), 0, before.id)
            if published is not None:
                self._plans[key] = published

    def _in_background(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread, after earlier work."""
        before = self._publishing

        def run() -> None:
            if before is not None:
                before.join()
            work()

        self._publishing = threading.Thread(target=run, name="dieselfs-plan", daemon=True)
        self._publishing.start()


def _remove_all(plans: dict[Hashable, Published], pid: int) -> None:
    """Remove all plans, except in a forked child, whose dictionary is a copy of its parent's."""
    if os.getpid() == pid:
        while plans:
            plans.popitem()[1].remove()

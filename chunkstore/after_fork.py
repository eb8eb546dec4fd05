"""Renewal of locks, threads and counters in forked processes.

A forked child has one thread. A lock that another thread of the parent held at the fork stays
locked in the child for ever, and no other thread of the parent exists there. So an object that owns
such things creates them in `renew`, which is called again in every child before any other code of
the child runs.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object with locks, threads or counters that a forked child must create again."""

    def renew(self) -> None:
        """Set locks, threads and counters to their initial state."""
        ...


_owners: WeakSet[Renewable] = WeakSet()


def renew_now_and_after_fork(owner: Renewable) -> None:
    """Call `owner.renew()` now, and in each process forked from this one while `owner` lives."""
    owner.renew()
    renew_after_fork(owner)


def renew_after_fork(owner: Renewable) -> None:
    """Call `owner.renew()` in each process forked from this one while `owner` lives."""
    _owners.add(owner)


def _renew_all() -> None:
    """Renew each owner, whatever becomes of others; Python prints the failure that is raised."""
    failure: Exception | None = None
    for owner in list(_owners):
        try:
            owner.renew()
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


os.register_at_fork(after_in_child=_renew_all)

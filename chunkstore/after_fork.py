"""Locks, threads and counters of one process: a forked child makes its own.

A child has one thread. A lock that another thread held at the fork stays locked in it for ever, and a thread that it counts on is not there.
So whoever owns such things makes them in `renew`, and `renew` is called again in every child, before anything else runs in it.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    def renew(self) -> None:
        """Make locks, threads and counters as they are at first."""
        ...


_owners: WeakSet[Renewable] = WeakSet()


def renew_now_and_after_fork(owner: Renewable) -> None:
    """Call `owner.renew()`, and again in each process forked from this one while `owner` lives."""
    owner.renew()
    _owners.add(owner)


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


os.register_at_fork(after_in_child=_renew_all)

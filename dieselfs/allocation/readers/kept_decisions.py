"""The decisions that a reader goes by when its directory was away, or has lost all that it had.

A Redis that was restarted knows at first only the readers that have renewed their leases already.
Shares that are computed from those would be too large together. And if it was restarted without its
data, a missing decision does not mean that one was withdrawn. So a reader keeps all that it had
until the others are back, and what the former life of the directory decided until the present one
decides on the same job or dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dieselfs.allocation.directory.decisions import CacheDecision, Decisions, IoDecision
from dieselfs.allocation.directory.port import SETTLED_S, Renewal


class KeptDecisions:
    """The decisions that one reader goes by. One thread uses it."""

    def __init__(self) -> None:
        self._last: Renewal | None = None
        self._since = self._life = 0
        self._former_io: IoDecision | None = None
        self._decisions: Decisions | None = None
        self._former_caches: Mapping[str, CacheDecision] = {}
        """The decisions of former lives on datasets, by id."""

    def beat(self, found: Renewal) -> Renewal:
        """Return what to go by when the directory gives this answer."""
        last = self._last
        if last is None:
            self._since, self._life = found.since, found.life
        elif found.since != self._since and last.io is not None and found.awake_s < SETTLED_S:
            return last
        if last is not None and found.life != self._life:
            self._former_io = last.io
        self._since, self._life = found.since, found.life
        if found.io is not None:
            self._former_io = None
        self._last = replace(found, io=found.io or self._former_io)
        return self._last

    def decisions(self, found: Decisions) -> Decisions:
        """Return what to go by when the directory has these decisions."""
        last, self._decisions = self._decisions, found
        if last is not None and found.life != last.life:
            self._former_caches = {**self._former_caches, **last.caches_in_force}
        decided = found.caches_in_force
        self._former_caches = {
            id: each for id, each in self._former_caches.items() if id not in decided
        }
        return replace(found, caches=[*self._former_caches.values(), *found.caches])

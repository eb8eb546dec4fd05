"""Circuit breakers: whom not to ask for a while. State over a given clock; nothing here waits.

A failure opens a peer's breaker for its *hold*: 1 s, doubled by each further failure up to 60 s. It closes when a ping that began after the hold was
answered. Pings are the master's (`membership`), and readers see in the view when they began, so no reader is ever the probe. A minute
without a failure, counted from the end of the hold, and the peer's failures are forgotten.

Failures while it is open are those of requests that were under way: all that waited on one connection fail together, and count as one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dieselfs.peercache.members import MemberId

FIRST_HOLD_S: Final = 1.0
LONGEST_HOLD_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Of a peer that has failed. Times are `Runtime.now`'s."""

    failures: int
    """That have doubled the hold, the first among them."""
    opened: float
    until: float
    """The end of the hold: a ping that began from then on closes it."""
    is_open: bool

    @property
    def hold_s(self) -> float:
        return self.until - self.opened


class Breakers:
    """Of one process, towards all peers. Thread-safe."""

    def __init__(
        self, now: Callable[[], float], opened: Callable[[MemberId], None] | None = None
    ) -> None:
        """`opened` is told of each breaker that opens, by who has failed, with no lock held: at most once a second and peer."""
        self._now = now
        self._on_opened = opened
        self._lock = threading.Lock()
        self._states: dict[MemberId, BreakerState] = {}

    def tell(self, opened: Callable[[MemberId], None]) -> None:
        """Whom to tell of breakers that open from now on."""
        self._on_opened = opened

    def failed(self, peer: MemberId) -> None:
        """It has not answered, or not soundly."""
        now = self._now()
        with self._lock:
            state = self._remembered(peer, now)
            if state is not None and state.is_open:
                return
            failures = state.failures + 1 if state is not None else 1
            hold_s = min(LONGEST_HOLD_S, FIRST_HOLD_S * 2 ** min(failures - 1, 16))
            self._states[peer] = BreakerState(failures, now, now + hold_s, is_open=True)
        if self._on_opened is not None:
            self._on_opened(peer)

    def allows(self, peer: MemberId, answered: float | None) -> bool:
        """Whether it may be asked; `answered` says when the last ping that it has answered began. 0.1 µs for who has not failed."""
        if peer not in self._states:
            return True
        now = self._now()
        with self._lock:
            state = self._remembered(peer, now)
            if state is None or not state.is_open:
                return True
            if answered is None or answered < state.until:
                return False
            self._states[peer] = replace(state, is_open=False)
            return True

    def states(self) -> Mapping[MemberId, BreakerState]:
        """Of all whose failures are remembered."""
        now = self._now()
        with self._lock:
            remembered = {peer: self._remembered(peer, now) for peer in list(self._states)}
            return {peer: state for peer, state in remembered.items() if state is not None}

    def _remembered(self, peer: MemberId, now: float) -> BreakerState | None:
        """An open one is kept until it closes, however long that takes."""
        state = self._states.get(peer)
        if state is not None and not state.is_open and now >= state.until + FORGOTTEN_AFTER_S:
            del self._states[peer]
            return None
        return state

"""Circuit breakers: the rule that stops a process from asking a failed peer for a while.

A breaker is state over a given clock; nothing here waits. A failure opens a peer's breaker for its
*hold*: 1 s, doubled by each further failure up to 60 s. A ping that began after the hold and was
answered closes it. The master sends the pings (`membership`), and the view shows readers when they
began, so no reader is ever the probe. The failures of a peer are forgotten after a minute without
one, counted from the end of the hold.

Failures while the breaker is open belong to requests that were already under way. All requests that
waited on one connection fail together and count as one failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dieselfs.cache.ports.members import MemberId

FIRST_HOLD_S: Final = 1.0
LONGEST_HOLD_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 60.0
"""The time without a failure, from the end of the hold, after which failures are forgotten."""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of a peer that has failed. Times are those of `Runtime.now`."""

    failures: int
    """Failures that have set or doubled the hold, the first among them."""
    opened: float
    until: float
    """The end of the hold: a ping that began at this time or later closes the breaker."""
    is_open: bool

    @property
    def hold_s(self) -> float:
        """The length of the hold."""
        return self.until - self.opened


class Breakers:
    """The breakers of one process, one for each peer. Thread-safe."""

    def __init__(
        self, now: Callable[[], float], opened: Callable[[MemberId], None] | None = None
    ) -> None:
        """`opened` is called with the id of each peer whose breaker opens.

        The call comes from the thread that reported the failure, with no lock held, and at most
        once a second for each peer.
        """
        self._now = now
        self._on_opened = opened
        self._lock = threading.Lock()
        self._states: dict[MemberId, BreakerState] = {}

    def on_opened(self, opened: Callable[[MemberId], None]) -> None:
        """Replace the callback for breakers that open from now on."""
        self._on_opened = opened

    def failed(self, peer: MemberId) -> None:
        """Note that a peer did not answer, or sent an invalid answer."""
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
        """Return whether the peer may be asked. Takes 0.1 µs for a peer that has not failed.

        `answered` is the time at which the last ping that the peer answered began.
        """
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
        """Return the state of each peer whose failures are remembered."""
        now = self._now()
        with self._lock:
            remembered = {peer: self._remembered(peer, now) for peer in list(self._states)}
            return {peer: state for peer, state in remembered.items() if state is not None}

    def _remembered(self, peer: MemberId, now: float) -> BreakerState | None:
        """Return the state of a peer, and drop it when it is old enough to be forgotten.

        An open breaker is kept until it closes, however long that takes.
        """
        state = self._states.get(peer)
        if state is not None and not state.is_open and now >= state.until + FORGOTTEN_AFTER_S:
            del self._states[peer]
            return None
        return state

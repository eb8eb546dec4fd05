"""A bound on second requests: a token bucket to which every read adds a fraction.

Dean & Barroso bound hedges in the same way, at a few percent. The worth of second requests shows in
how often they are answered first. They are useful wherever single requests are slow by chance. They
are useless where requests wait in one queue, because the second one waits behind the first. So when
few of the latest second requests were answered first, reads add less.
"""

from __future__ import annotations

from typing import Final

_WORTH_IT: Final = 0.25
"""The share of second requests answered first from which on reads add the full amount."""
_LEAST: Final = 0.1
"""The smallest factor of the full amount; it lets the budget notice when hedges become useful."""
_MEMORY: Final = 32
"""Second requests after which earlier ones count for a third."""


class HedgeBudget:
    """The tokens for second requests. Not thread-safe."""

    def __init__(self, extra_share: float, burst: float) -> None:
        self._extra_share = extra_share
        self._burst = burst
        self._tokens = 0.0
        self._won_share = 1.0

    def earn(self) -> None:
        """Add the share of one read."""
        worth = max(_LEAST, min(1.0, self._won_share / _WORTH_IT))
        self._tokens = min(self._burst, self._tokens + self._extra_share * worth)

    def spend(self) -> bool:
        """Take a token for a second request; return False if there is none."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def learn(self, won: bool) -> None:
        """Record whether a second request was answered first."""
        self._won_share += (won - self._won_share) / _MEMORY

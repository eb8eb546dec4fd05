"""How many second requests may be sent: a bucket of tokens, to which every read adds a little (Dean & Barroso bound hedges so, at a few percent).

What a second request is worth shows in how often it is answered first. It is wherever single requests straggle. It never is where requests wait for
each other in one queue, since it stands behind the first; there it only costs. So when few of the latest were answered first, reads add less.
"""

from __future__ import annotations

from typing import Final

_WORTH_IT: Final = 0.25
"""Share of second requests answered first, from which on reads add in full."""
_LEAST: Final = 0.1
"""Of what they add in full: so that it is noticed when second requests become worth it."""
_MEMORY: Final = 32
"""Second requests after which what was before counts for a third."""


class HedgeBudget:
    """Not thread-safe."""

    def __init__(self, extra_share: float, burst: float) -> None:
        self._extra_share = extra_share
        self._burst = burst
        self._tokens = 0.0
        self._won_share = 1.0

    def earn(self) -> None:
        """Of one read."""
        worth = max(_LEAST, min(1.0, self._won_share / _WORTH_IT))
        self._tokens = min(self._burst, self._tokens + self._extra_share * worth)

    def spend(self) -> bool:
        """Whether one more may be sent."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def learn(self, won: bool) -> None:
        """Whether one that was sent was answered first."""
        self._won_share += (won - self._won_share) / _MEMORY

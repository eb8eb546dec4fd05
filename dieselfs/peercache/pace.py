"""Whether a peer answers fast enough to be worth asking: arithmetic over given times, of one connection.

Each answer has an allowance: 10 ms, and its bytes at 8 MB/s, counted from its request's sending, from the end of the answer before it, or from when somebody began
to wait, whichever is latest. What takes longer is *debt*, what takes less pays it back, and so does a tenth of the time in which nobody waits. A peer that owes 1 s
is too slow. So a line of 100 KB/s is let go after a few files, though each of them comes within the silence that is borne, and a peer that
stalls now and then is kept.

While a peer says that it works at a request, the time of that request does not count: its store is slow, as ours is.
"""

from __future__ import annotations

from typing import Final

BYTES_PER_S: Final = 8e6
"""Whoever sends or takes bytes more slowly is let go."""
ANSWER_S: Final = 0.01
"""For an answer without bytes. A store needs about as long for a file, so who is slower is not missed."""
TOO_SLOW_S: Final = 1.0
"""Of debt."""
_MOST_S: Final = TOO_SLOW_S / 2
"""Of debt by one answer: it may be this process that was stopped for a while."""
_FORGIVEN: Final = 0.1
"""Of the time in which nobody waits."""


class SlowPeerDetector:
    """One thread at a time. Times are `Runtime.now`'s."""

    def __init__(self) -> None:
        self.debt_s = 0.0
        self._since: float | None = None
        """From when on the next answer is waited for, at the earliest."""

    @property
    def is_too_slow(self) -> bool:
        return self.debt_s >= TOO_SLOW_S

    def waits(self, now: float) -> None:
        """Somebody begins to wait for what comes."""
        if self._since is not None:
            self.debt_s = max(0.0, self.debt_s - _FORGIVEN * (now - self._since))
        self._since = now

    def passes(self, now: float) -> None:
        """The time until now does not count."""
        self._since = now

    def answered(self, asked: float, now: float, bulk_bytes: int) -> None:
        """What was asked for at `asked` is there, with so many bytes."""
        since = asked if self._since is None else max(asked, self._since)
        beyond_s = now - since - ANSWER_S - bulk_bytes / BYTES_PER_S
        self.debt_s = max(0.0, self.debt_s + min(beyond_s, _MOST_S))
        self._since = now

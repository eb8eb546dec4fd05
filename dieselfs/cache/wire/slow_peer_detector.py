"""The slow-peer detector, which tells whether a peer answers fast enough to be worth asking.

It is arithmetic over given times, for one connection. Each answer has an allowance: 10 ms, and its
bytes at 8 MB/s. The allowance counts from the time at which the request was sent, the previous
answer ended, or a thread began to wait, whichever is latest. Time beyond the allowance is *debt*;
time below it pays the debt back, and so does a tenth of the time in which no thread waits. A peer
that owes 1 s is too slow. So a line of 100 KB/s is given up after a few files, although each of
them comes within the tolerated silence, and a peer that stalls now and then is kept.

While a peer says that it is working at a request, the time of that request does not count: its
store is slow, as this node's store is.
"""

from __future__ import annotations

from typing import Final

BYTES_PER_S: Final = 8e6
"""The least rate at which a side must send or receive bytes; a slower one is given up."""
ANSWER_S: Final = 0.01
"""The allowance of an answer without bytes.

A store needs about as long for a file, so losing a slower peer costs nothing.
"""
TOO_SLOW_S: Final = 1.0
"""The debt of a peer that is too slow."""
_MOST_S: Final = TOO_SLOW_S / 2
"""The most debt from one answer: this process itself may have been stopped for a while."""
_FORGIVEN: Final = 0.1
"""The part of the time without a waiting thread that pays debt back."""


class SlowPeerDetector:
    """The debt of one connection's peer. One thread at a time. Times are those of `Runtime.now`."""

    def __init__(self) -> None:
        self.debt_s = 0.0
        self._since: float | None = None
        """The earliest time from which the next answer's allowance counts."""

    @property
    def is_too_slow(self) -> bool:
        """The peer owes 1 s or more."""
        return self.debt_s >= TOO_SLOW_S

    def waits(self, now: float) -> None:
        """Note that a thread begins to wait for what comes."""
        if self._since is not None:
            self.debt_s = max(0.0, self.debt_s - _FORGIVEN * (now - self._since))
        self._since = now

    def passes(self, now: float) -> None:
        """Do not count the time until now."""
        self._since = now

    def answered(self, asked: float, now: float, bulk_bytes: int) -> None:
        """Note the answer, with its bulk bytes, to a request that was sent at `asked`."""
        since = asked if self._since is None else max(asked, self._since)
        beyond_s = now - since - ANSWER_S - bulk_bytes / BYTES_PER_S
        self.debt_s = max(0.0, self.debt_s + min(beyond_s, _MOST_S))
        self._since = now

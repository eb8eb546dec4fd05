"""Progress trackers: they report how far the readers of an order are.

Readers that map chunks from node memory publish their positions in plan files. Readers through a
mount do not, so their positions follow from progress probes. A mount that fills the page cache has
a tracker of its own (`dieselfs.fuse.pages.planned_pages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dieselfs.prefetch.chunk_uses import LastUses
from dieselfs.prefetch.close_events import CloseEvents
from dieselfs.prefetch.planner import Readers
from dieselfs.prefetch.reader_progress import ReaderProgress
from dieselfs.prefetch.window import PlannedOrder
from metadata.snapshot import Snapshot

_HELD_BACK: Final = 4
"""The part of the budget that may be kept for readers that are apart: a quarter."""


class ProgressTracker(Protocol):
    """The progress of the readers of one order after the other.

    The prefetcher's one thread calls it, unless stated otherwise, and is not called back. Here
    readers keep nothing outside of node memory.
    """

    def begin(self, order: PlannedOrder) -> None:
        """Track this order from now on."""

    def position(self) -> int:
        """Return how many files of the order have certainly been read.

        It is also the moment to do work that has become due.
        """

    def leading_position(self) -> int:
        """Return how many files of the order the fastest reader may have read.

        The value is as of the last `position`.
        """

    def is_at_end(self) -> bool:
        """Return whether readers that do not report their end are at it, as of `position`."""
        return False

    def arrived(self, chunk: int) -> None:
        """Note that a chunk of the order is in node memory."""
        return

    def released(self) -> Sequence[int]:
        """Return the chunks that node memory need not keep for this order, since the last call."""

    def lost(self) -> Sequence[int]:
        """Return the released chunks that node memory must have again, since the last call.

        The copies of their files outside of node memory are gone.
        """
        return ()

    def outside_bytes(self) -> int:
        """Return the bytes of the order that readers keep outside of node memory.

        They count in the same budget. Any thread may call it.
        """
        return 0

    def wake_fds(self) -> Sequence[int]:
        """Return descriptors that are readable when there is something new.

        `position` reads them empty. It is called once, before `begin`.
        """
        return ()

    def close(self) -> None:
        """Track no more. Any thread may call it, also again."""
        return

    def end(self) -> None:
        """Track no more, and give memory back: no plan is left."""
        self.close()


class ClientProgress(ProgressTracker):
    """The tracker of clients, by the positions in their plan files.

    It never reports their end: a client at its end may still map chunks, and removes its plan file.
    """

    _readers: Readers
    _last_uses: LastUses
    _position = 0

    def begin(self, order: PlannedOrder) -> None:
        """See `ProgressTracker`."""
        self._readers, self._last_uses, self._position = order.readers, LastUses(order.uses), 0

    def position(self) -> int:
        """Return how many files of the common order have been read at least.

        The slowest reader counts, unless it was killed.
        """
        seen = [(reader.plan.look(), reader) for reader in self._readers]
        lengths = [len(reader.plan.order) - reader.start for _, reader in seen]
        read = [look.position - reader.start for look, reader in seen]
        at_work = [n for n, length in enumerate(lengths) if read[n] < length]
        at_work = [n for n in at_work if seen[n][0].is_read] or at_work
        turns = min((read[n] for n in at_work), default=max(lengths, default=0))
        self._position = sum(min(turns, length) for length in lengths)
        return self._position

    def leading_position(self) -> int:
        """See `ProgressTracker`. It is the last `position`."""
        return self._position

    def released(self) -> Sequence[int]:
        """See `ProgressTracker`."""
        return self._last_uses.before(self._position)


class MountProgress(ProgressTracker):
    """The tracker of readers through a mount that fills no pages, by progress probes."""

    def __init__(
        self, events: CloseEvents, snapshot: Snapshot, budget_bytes: Callable[[], int]
    ) -> None:
        """Create it. `events` is closed with it."""
        self._events, self._budget_bytes = events, budget_bytes
        self._at = ReaderProgress(events, snapshot)

    def begin(self, order: PlannedOrder) -> None:
        """See `ProgressTracker`."""
        self._last_uses = LastUses(order.uses)
        self._at.begin(order.inodes, order.uses.read_bytes)

    def position(self) -> int:
        """Return the low progress, and watch the probes that come next."""
        budget = self._budget_bytes()
        self._at.look(budget, budget // 2)
        self._at.watch()
        return self._at.low

    def leading_position(self) -> int:
        """See `ProgressTracker`."""
        return self._at.leading_position

    def is_at_end(self) -> bool:
        """See `ProgressTracker`."""
        return self._at.is_at_end

    def released(self) -> Sequence[int]:
        """Return the chunks that even the slowest reader has surely read."""
        held_back = self._budget_bytes() // _HELD_BACK
        return self._last_uses.before(self._at.surely_read(self._at.read_bytes, held_back))

    def close(self) -> None:
        """Close the events."""
        self._events.close()

"""Node memory whose fetches end when a test says so, and readers that a test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.prefetch.planner import Reader
from dieselfs.prefetch.plans import Plan, Seen
from dieselfs.prefetch.progress_tracker import ClientProgress
from dieselfs.prefetch.requirement import MemoryNeed
from dieselfs.prefetch.window import PlannedOrder
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot, number_named, number_of


class MadePlan(Plan):
    """A plan without a file; a test says where its reader is, and when it has left the plan."""

    def __init__(
        self,
        snapshot: MadeSnapshot,
        inodes: Sequence[int] | npt.NDArray[np.uint32],
        group_start: Sequence[int] = (),
        *,
        id: str = "",
        after: str = "",
        start_at: int = 0,
    ) -> None:
        super().__init__(id or f"made-{next(_numbers)}", snapshot.as_snapshot(), after)
        array, starts = np.array(inodes, np.uint32), np.array(group_start or [0, len(inodes)])
        self.inodes = ReadingPlan(str(snapshot.id), array, starts)
        self.at, self.is_read = start_at, True
        self.needs = MemoryNeed()
        """Nothing: the tests of the window give less memory than an order should have."""

    @property
    def order(self) -> ReadingPlan:
        return self.inodes

    @property
    def need(self) -> MemoryNeed:  # type: ignore[override]
        return self.needs

    def look(self) -> Seen:
        return Seen(self.at, self.is_read)


_numbers = count()


def order_of(
    snapshot: MadeSnapshot, inodes: Sequence[int] | npt.NDArray[np.uint32]
) -> PlannedOrder:
    return PlannedOrder.of((Reader(MadePlan(snapshot, inodes)),))


class ScriptedMemory:
    """Implements `PlannedMemory`. Fetches end at once, or if `holds` when they are released."""

    def __init__(self, holds: bool = False) -> None:
        self.holds = holds
        self.begun: list[int] = []
        """Chunks, in the order in which their fetches began."""
        self.ended: list[int] = []
        self.errors: dict[int, list[Exception]] = {}
        """What the next fetches of a chunk raise."""
        self.windows: list[int] = []
        self.expected: list[list[int]] = []
        self.used: list[int] = []
        self.expect_errors: list[Exception] = []
        self.most_at_a_time = 0
        self._released: set[int] = set()
        self._changed = threading.Condition()

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        chunk = blocks[0].chunk
        number = number_of(chunk.id)
        with self._changed:
            self.begun.append(number)
            self.most_at_a_time = max(self.most_at_a_time, len(self.begun) - len(self.ended))
            self._changed.wait_for(lambda: not self.holds or number in self._released)
            self._released.discard(number)
            self.ended.append(number)
            if self.errors.get(number):
                raise self.errors[number].pop(0)

    def release(self, *chunks: int) -> None:
        with self._changed:
            self._released.update(chunks)
            self._changed.notify_all()

    def release_all(self) -> None:
        with self._changed:
            self.holds = False
            self._changed.notify_all()

    @property
    def under_way(self) -> list[int]:
        with self._changed:
            left = list(self.begun)
            for number in self.ended:
                left.remove(number)
            return left

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        if self.expect_errors:
            raise self.expect_errors.pop(0)
        with self._changed:
            self.expected.append([number_named(name) for name in names])
            self.windows.append(window_bytes)
            self.used.append(0)

    def progress(self, used: int) -> None:
        assert 0 < used <= len(self.expected[-1])
        assert used > self.used[-1]
        self.used[-1] = used

    def still_expected(self) -> list[int]:
        with self._changed:
            return self.expected[-1][self.used[-1] :] if self.expected else []


class MovedReaders(ClientProgress):
    """Readers at `at`, which a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.orders: list[list[int]] = []
        self.arrivals: list[list[int]] = []
        """Chunks, for each order."""
        self.outside = 0
        self.closed = 0
        self.on_look: Callable[[], None] = lambda: None

    def begin(self, order: PlannedOrder) -> None:
        super().begin(order)
        self.orders.append(order.inodes.tolist())
        self.arrivals.append([])

    def position(self) -> int:
        self.on_look()
        self._position = self.at
        return self.at

    def arrived(self, chunk: int) -> None:
        self.arrivals[-1].append(chunk)

    def outside_bytes(self) -> int:
        return self.outside

    def close(self) -> None:
        self.closed += 1

"""How far readers are, by the files that they close."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from dieselfs.prefetch.planner import Reader
from dieselfs.prefetch.progress_probes import probe_positions
from dieselfs.prefetch.progress_tracker import MountProgress
from dieselfs.prefetch.window import PlannedOrder
from metadata.snapshot import Snapshot
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import MadePlan

CHUNKS, IN_CHUNK, SIZE = 10, 640, 1000
FILES = CHUNKS * IN_CHUNK
BUDGET = 4 * IN_CHUNK * SIZE


class Named(MadeSnapshot):
    def path_of(self, inode: int) -> bytes:
        return b"%d" % inode


class Closes:
    """As `close_events.CloseEvents`."""

    fd, is_full = -1, False

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.closed: list[int] = []
        self.is_open = True

    def __len__(self) -> int:
        return len(self.watched)

    def watch(self, position: int, path: bytes) -> bool:
        self.watched.add(position)
        return True

    def unwatch(self, position: int) -> None:
        self.watched.discard(position)

    def take(self) -> list[int]:
        closed, self.closed = self.closed, []
        self.watched -= set(closed)
        return closed

    def clear(self) -> None:
        self.watched.clear()

    def close(self) -> None:
        self.is_open = False


class Reading:
    """Files are read in the order of their numbers."""

    def __init__(self) -> None:
        snapshot = cast(Snapshot, Named([[SIZE] * IN_CHUNK] * CHUNKS))
        self.closes = Closes()
        self.readers = MountProgress(self.closes, snapshot, lambda: BUDGET)
        plan = MadePlan(cast(MadeSnapshot, snapshot), range(FILES))
        self.order = PlannedOrder.of((Reader(plan),))
        self.probes: Sequence[int] = probe_positions(np.full(FILES, SIZE)).tolist()
        self.begin()

    def begin(self) -> None:
        self.readers.begin(self.order)
        assert self.readers.position() == 0

    def read(self, begin: int, end: int) -> int:
        """Files of these positions; the low progress."""
        probes = [n for n, at in enumerate(self.probes) if begin <= at < end]
        self.closes.closed += [probe for probe in probes if probe in self.closes.watched]
        return self.readers.position()


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_the_last_probe_that_was_closed_after_all_before_it_is_the_position(
    reading: Reading,
) -> None:
    assert 1024 - 128 < reading.read(0, 1024) <= 1024
    before = reading.readers.position()
    assert reading.read(1280, 1536) == before, "a reader that lags is waited for"
    assert reading.readers.leading_position() > 1280
    assert reading.read(1024, 1280) > 1536 - 128
    assert not reading.readers.is_at_end()


def test_a_chunk_is_released_when_its_last_file_has_surely_been_read(reading: Reading) -> None:
    reading.read(0, IN_CHUNK - 64)
    assert list(reading.readers.released()) == []
    reading.read(IN_CHUNK - 64, 3 * IN_CHUNK)
    assert 0 in reading.readers.released()
    reading.read(3 * IN_CHUNK, FILES)
    assert {*reading.readers.released()} >= {4, 5, 6}
    assert list(reading.readers.released()) == []


def test_the_last_probe_is_the_end(reading: Reading) -> None:
    for begin in range(0, FILES, 640):
        assert not reading.readers.is_at_end()
        reading.read(begin, begin + 640)
    assert reading.readers.is_at_end()
    reading.begin()
    assert not reading.readers.is_at_end()


def test_a_stray_read_far_ahead_moves_nothing(reading: Reading) -> None:
    before = reading.read(0, 128)
    assert reading.read(6000, 6064) == before
    assert reading.readers.leading_position() < 1000
    assert list(reading.readers.released()) == []


def test_the_next_order_starts_over(reading: Reading) -> None:
    reading.read(0, 2000)
    reading.begin()
    assert reading.readers.leading_position() == 0
    assert reading.read(0, 1024) > 1024 - 128


def test_it_ends_with_its_watches(reading: Reading) -> None:
    reading.readers.close()
    assert not reading.closes.is_open

"""How far readers are, by the READs that Python answers."""

import threading
from typing import cast

import numpy as np

from dieselfs.fuse.request_readers import RequestReaders
from dieselfs.plan.chunk_uses import ChunkUses
from metadata.snapshot import Snapshot
from tests.dieselfs.plan.made_snapshot import MadeSnapshot

CHUNKS, IN_CHUNK, SIZE = 10, 10, 100
BUDGET = 3 * IN_CHUNK * SIZE
FILES = CHUNKS * IN_CHUNK


class Reading:
    """Files are read in the order of their numbers, but for the first `left_out`, which are in no plan."""

    def __init__(self, left_out: int = 0) -> None:
        self.ticks: list[int] = []
        snapshot = cast(Snapshot, MadeSnapshot([[SIZE] * IN_CHUNK] * CHUNKS))
        self.readers = RequestReaders(FILES, BUDGET, self.ticks.append)
        self.order = np.arange(left_out, FILES, dtype=np.uint32)
        self.uses = ChunkUses.of(snapshot, self.order)
        self.readers.begin(self.order, self.uses)

    def read(self, *files: int) -> int:
        for file in files:
            self.readers.note_read(file)
        return self.readers.position()


def test_the_foremost_read_is_the_position() -> None:
    reading = Reading()
    assert reading.read() == 0
    assert reading.read(0, 1, 2) == 3
    assert reading.read(7, 5, 6) == 8
    assert reading.readers.foremost() == 8
    assert reading.ticks == [0, 3, 8]


def test_chunks_are_released_when_their_last_file_was_read() -> None:
    reading = Reading()
    assert reading.read(*range(IN_CHUNK - 1)) == IN_CHUNK - 1
    assert list(reading.readers.released()) == []
    reading.read(IN_CHUNK - 1, IN_CHUNK)
    assert list(reading.readers.released()) == [0]
    assert list(reading.readers.released()) == []


def test_a_stray_read_far_ahead_moves_nothing() -> None:
    reading = Reading()
    assert reading.read(0, 1, 90, 2, 50, 3, 91) == 4
    assert list(reading.readers.released()) == []


def test_readers_whose_pages_the_kernel_had_are_followed_where_they_are_seen_again() -> None:
    reading = Reading()
    assert reading.read(0, 60, 62) == 63
    assert reading.read(63, 64) == 65


def test_reads_before_an_order_is_known_are_nothing() -> None:
    readers = RequestReaders(FILES, BUDGET, lambda position: None)
    readers.note_read(5)
    assert readers.position() == 0


def test_threads_that_answer_side_by_side_never_lead_back() -> None:
    reading = Reading()
    threads = [
        threading.Thread(target=lambda n=n: [reading.readers.note_read(f) for f in range(n, 80, 4)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert reading.read() == 80


def test_files_that_are_in_no_plan_move_nothing() -> None:
    reading = Reading(left_out=5)
    assert reading.read(0, 1, 4) == 0
    assert reading.read(5, 6) == 2


def test_a_next_order_starts_over() -> None:
    reading = Reading()
    assert reading.read(*range(30)) == 30
    reading.readers.begin(reading.order[::-1].copy(), reading.uses)
    assert reading.read() == 0
    assert reading.read(FILES - 1, FILES - 2) == 2

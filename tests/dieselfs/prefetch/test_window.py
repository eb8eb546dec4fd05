"""What is fetched, expected and given up, from values alone: no thread, no clock, no node
memory."""

import random

import pytest

from chunkstore.errors import Unavailable
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES
from dieselfs.errors import CacheFull, MasterGone
from dieselfs.prefetch.window import FETCHES, Fetched, PlannedFetch, Window
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot, number_named, number_of
from tests.dieselfs.prefetch.scripted_memory import order_of

SNAPSHOT = MadeSnapshot.even(chunks=20, files=5, file_bytes=100)
SIZE = 500
ALL = list(range(100))


def begun(inodes: list[int] = ALL) -> Window:
    window = Window(0.0)
    window.begin(order_of(SNAPSHOT, inodes))
    return window


def due(window: Window, chunks: float, outside: int = 0) -> list[PlannedFetch]:
    return list(window.due(int(chunks * SIZE), outside, 0.0))


def numbers(fetches: list[PlannedFetch]) -> list[int]:
    return [number_of(fetch.chunk.id) for fetch in fetches]


def arrive(window: Window, fetches: list[PlannedFetch]) -> list[int | None]:
    return [window.ended(Fetched(fetch, 0.0), 0.0) for fetch in fetches]


def expected(window: Window) -> list[int]:
    return [number_named(name) for name in window.expectation()]


def size(window: Window) -> int:
    return window.bytes


def test_chunks_are_due_in_the_order_of_their_first_use_and_each_once() -> None:
    inodes = random.Random(1).sample(ALL, 100)
    window, seen = begun(inodes), list[int]()
    while fetches := due(window, 20):
        assert window.under_way <= FETCHES
        seen += numbers(fetches)
        assert arrive(window, fetches) == numbers(fetches)
    assert seen == list(dict.fromkeys(inode // 5 for inode in inodes))


def test_the_window_and_what_is_outside_stay_within_the_budget() -> None:
    window = begun()
    assert numbers(due(window, 4.9)) == [0, 1, 2, 3]
    assert due(window, 4.9) == []
    assert due(window, 6, outside=SIZE + 1) == []
    assert numbers(due(window, 6, outside=SIZE)) == [4]
    assert size(window) == 5 * SIZE


def test_a_chunk_above_the_budget_is_fetched_alone() -> None:
    window = begun()
    assert due(window, 0.5, outside=1) == []
    assert numbers(due(window, 0.5)) == [0]
    assert due(window, 0.5) == []


def test_released_chunks_make_room() -> None:
    window = begun()
    arrive(window, due(window, 4))
    window.move(10, 10, 0.0)
    window.release([0, 1])
    assert size(window) == 2 * SIZE
    assert numbers(due(window, 4)) == [4, 5]


def test_a_chunk_that_was_released_too_early_comes_next() -> None:
    window = begun()
    arrive(window, due(window, 4))
    window.release([0, 1, 2])
    assert numbers(due(window, 3)) == [4, 5]
    window.reclaim([1, 3])
    assert numbers(due(window, 5)) == [1, 6], "chunk 3 is still there"
    assert expected(window)[:2] == [1, 3]
    assert size(window) == 5 * SIZE


def test_a_chunk_that_is_released_under_way_is_not_handed_over() -> None:
    window = begun()
    fetches = due(window, 3)
    window.move(7, 7, 0.0)
    window.release([0])
    assert size(window) == 3 * SIZE, "until its fetch ends"
    assert arrive(window, fetches) == [None, 1, 2]
    assert size(window) == 2 * SIZE
    assert window.statistics(0).late == 1, "two files of chunk 1 had been read"


@pytest.mark.parametrize("error", [CacheFull("full"), MasterGone("dead")])
def test_what_found_no_room_or_no_master_is_due_again(error: Exception) -> None:
    window = begun()
    first, second = due(window, 2)
    assert window.ended(Fetched(first, 0.0, error), 0.0) is None
    arrive(window, [second])
    assert numbers(due(window, 2)) == [0]
    found = window.statistics(0)
    assert (found.no_room, found.skipped) == (int(isinstance(error, CacheFull)), 0)


def test_what_cannot_be_fetched_is_left_to_its_readers() -> None:
    window = begun()
    [first, *others] = due(window, 3)
    assert window.ended(Fetched(first, 0.0, Unavailable("gone")), 0.0) is None
    arrive(window, others)
    assert numbers(due(window, 3)) == [3]
    assert window.statistics(0).skipped == 1
    assert expected(window) == list(range(1, 20))


def test_node_memory_hears_of_uses_up_to_the_first_that_is_not_over() -> None:
    window = begun()
    assert expected(window) == list(range(20))
    assert window.newly_used() == 0
    window.release([0, 1, 3])
    assert window.newly_used() == 2
    assert window.newly_used() == 0, "once"
    assert window.expects_finished_uses()
    window.release([2])
    assert window.newly_used() == 4
    assert not window.expects_finished_uses()
    window.release([5])
    assert expected(window) == [4, *range(6, 20)]


def test_the_next_order_is_fetched_behind_this_one_and_handed_over_when_it_begins() -> None:
    window = begun(ALL[:10])
    expected(window)
    window.add(order_of(SNAPSHOT, [7, 50]))
    assert not window.is_expectation_current
    assert expected(window) == [0, 1, 1, 10]
    assert arrive(window, due(window, 9)) == [0, 1, None, None]
    assert size(window) == 4 * SIZE
    window.move(10, 10, 0.0)
    assert window.advance().inodes.tolist() == [7, 50]
    assert list(window.cached()) == [1, 10]
    assert size(window) == 2 * SIZE, "what was fetched for the first order alone is given up"
    assert (window.position, window.files) == (0, 2)
    assert expected(window) == [1, 10]


@pytest.mark.parametrize("is_advance", [True, False])
def test_a_fetch_for_an_order_that_is_over_gives_its_room_back(is_advance: bool) -> None:
    window = begun()
    fetches = due(window, 2)
    if is_advance:
        window.add(order_of(SNAPSHOT, [50, 55]))
        window.advance()
    else:
        window.begin(order_of(SNAPSHOT, [50, 55]))
    assert due(window, 2) == []
    assert arrive(window, fetches) == [None, None]
    assert size(window) == 0
    assert numbers(due(window, 2)) == [10, 11]


def test_readers_that_begin_again_keep_the_rates_that_were_measured() -> None:
    window = begun()
    window.move(10, 10, 1.0)
    window.move(60, 60, 2.0)
    before = window.rates.consumption
    assert before == pytest.approx(5000)
    window.begin(order_of(SNAPSHOT, ALL[60:]))
    window.move(20, 20, 2.4)
    assert window.rates.consumption == pytest.approx(5000)


def test_an_order_without_chunks_needs_nothing() -> None:
    window = begun([])
    assert due(window, 1) == []
    assert expected(window) == []
    window.move(0, 0, 0.0)
    assert window.newly_used() == 0
    assert Window(0.0).files == 0


# Large files, which are fetched in blocks

BLOCK = CACHE_BLOCK_BYTES
LARGE = 5 * BLOCK
"""Above 16 MiB."""


def with_large(*lengths: list[int]) -> Window:
    """All files of these chunks, one chunk after the other."""
    snapshot = MadeSnapshot(lengths)
    window = Window(0.0)
    window.begin(order_of(snapshot, list(range(snapshot.file_count))))
    return window


def test_a_large_file_is_fetched_and_expected_in_blocks() -> None:
    window = with_large([LARGE + 1], [100, 100])
    large, small = window.due(2 * LARGE, 0, 0.0)
    assert [block.length for block in large.blocks] == [BLOCK] * 5 + [1]
    assert [block.start for block in large.blocks] == [BLOCK * number for number in range(6)]
    assert [block.file for block in small.blocks] == [None]
    names = window.expectation()
    assert names == [block.name for block in (*large.blocks, *small.blocks)]
    assert size(window) == LARGE + 1 + 200
    assert arrive(window, [large, small]) == [0, 1]
    assert window.newly_used() == 0
    window.move(1, 1, 0.0)
    window.release([0])
    assert window.newly_used() == 6, "blocks"
    assert size(window) == 200


def test_smaller_chunks_pass_a_large_file_that_has_no_room_and_other_large_files_do_not() -> None:
    window = with_large([LARGE], [LARGE + BLOCK], [BLOCK], [LARGE], [100])
    budget = 2 * LARGE + BLOCK - 1
    fetches = list(window.due(budget, 0, 0.0))
    assert numbers(fetches) == [0, 2, 4]
    arrive(window, fetches)
    assert numbers(list(window.due(budget, 0, 0.0))) == []
    window.move(1, 1, 0.0)
    window.release([0])
    assert numbers(list(window.due(budget, 0, 0.0))) == [1]


def test_a_large_file_above_the_budget_is_left_to_its_readers() -> None:
    window = with_large([LARGE], [100])
    assert numbers(list(window.due(LARGE - 1, 0, 0.0))) == [1]
    assert window.statistics(0).skipped == 1
    assert len(window.expectation()) == 1


def test_a_large_file_that_found_no_room_goes_on_when_there_is_room() -> None:
    window = with_large([LARGE])
    [fetch] = window.due(LARGE, 0, 0.0)
    assert window.ended(Fetched(fetch, 0.0, CacheFull("full")), 0.0) is None
    assert size(window) == 0
    assert numbers(list(window.due(LARGE, 0, 0.0))) == [0]

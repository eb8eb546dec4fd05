from __future__ import annotations

import threading

from chunkstore.stores.turns import Turns
from tests.eventually import PATIENCE_S, eventually


def test_no_more_than_the_limit() -> None:
    turns = Turns(2)
    assert turns.take(0)
    assert turns.take(0)
    assert not turns.take(0)
    assert not turns.take(0.01)
    turns.give_back()
    assert turns.take(0)
    assert (turns.taken, turns.waiting, turns.waited) == (2, 0, 2)


def waiting_in_line(turns: Turns, count: int) -> tuple[list[threading.Thread], list[int]]:
    """Threads that wait in the order of their numbers, and the numbers of those whose turn came."""
    came: list[int] = []
    threads = []
    for number in range(count):

        def wait(number: int = number) -> None:
            assert turns.take(PATIENCE_S)
            came.append(number)

        before = turns.waiting
        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        eventually(lambda before=before: turns.waiting == before + 1)  # type: ignore[misc]
    return threads, came


def test_first_come_first_served() -> None:
    turns = Turns(1)
    assert turns.take(0)
    threads, came = waiting_in_line(turns, 8)
    for number in range(8):
        turns.give_back()
        threads[number].join(PATIENCE_S)
        assert came == list(range(number + 1))
    assert turns.taken == 1


def test_nobody_overtakes_those_who_wait() -> None:
    turns = Turns(1)
    assert turns.take(0)
    threads, came = waiting_in_line(turns, 1)
    turns.set_limit(1)
    assert not turns.take(0)
    turns.give_back()
    threads[0].join(PATIENCE_S)
    assert came == [0]


def test_a_higher_limit_lets_those_who_wait_in() -> None:
    turns = Turns(1)
    assert turns.take(0)
    threads, came = waiting_in_line(turns, 4)
    turns.set_limit(4)
    for thread in threads[:3]:
        thread.join(PATIENCE_S)
    assert sorted(came) == [0, 1, 2]
    assert (turns.taken, turns.waiting) == (4, 1)
    turns.give_back()
    threads[3].join(PATIENCE_S)


def test_a_lower_limit_takes_nothing_away() -> None:
    turns = Turns(3)
    assert all(turns.take(0) for _ in range(3))
    turns.set_limit(1)
    assert turns.taken == 3
    for left in (2, 1):
        turns.give_back()
        assert turns.taken == left
        assert not turns.take(0)
    turns.give_back()
    assert turns.take(0)


def test_who_leaves_the_line_is_passed_over() -> None:
    turns = Turns(1)
    assert turns.take(0)
    assert not turns.take(0.01)
    threads, came = waiting_in_line(turns, 1)
    turns.give_back()
    threads[0].join(PATIENCE_S)
    assert came == [0]
    assert (turns.taken, turns.waiting) == (1, 0)

"""Random histories in which chunks are purged: the index is a function of the commits and of the
chunks that are not retired."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from metadata.kv.memory import MemoryStore
from tests.metadata.commit_histories import (
    Entry,
    History,
    delete,
    dump,
    history,
    make_directory,
    put,
    random_purged_history,
)
from tests.metadata.stepped_index import Piecewise, Turns
from tests.metadata.test_namespace_model import check

HISTORIES = 120


@pytest.mark.parametrize("part", range(4))
def test_an_index_needs_no_retired_chunk(part: int) -> None:
    retirements = 0
    for seed in range(part, HISTORIES, 4):
        draw = random.Random(seed)
        tale = random_purged_history(draw)
        followed = MemoryStore()
        tale.apply_to(followed)
        check(followed, tale)
        expected = dump(followed, tale)
        retirements += len(tale.retired)
        there = sorted(tale.retired - tale.gone)
        some = frozenset(draw.sample(there, draw.randint(0, len(there))))
        for without in tale.retired, tale.gone, tale.gone | some:
            replayed = MemoryStore()
            tale.apply_to(replayed, without=without)
            assert dump(replayed, tale) == expected, (seed, without)
    assert retirements > 100


def carried(entry: Entry, version: int) -> Entry:
    return replace(entry, carried=version)


IMPLICIT = make_directory(b"a", 0o755, 4000)
RULES: dict[str, tuple[list[list[list[Entry]]], list[int], list[Entry]]] = {
    "the version of a directory comes from what lies below": (
        [[[make_directory(b"a")]], [[put(b"a/x")]], [[delete(b"a/x", 3)]]],
        [2],
        [carried(make_directory(b"a"), 3)],
    ),
    "a directory that was deleted and came back has lost its attributes": (
        [[[make_directory(b"a")]], [[delete(b"a", 2, directory=True)]], [[put(b"a/x")]]],
        [2],
        [carried(IMPLICIT, 4)],
    ),
    "a deletion hides what lies in a chunk that stays": (
        [[[put(b"a"), put(b"b")]], [[delete(b"a", 2)]], [[put(b"c")]]],
        [2],
        [delete(b"a", 2)],
    ),
    "a deleted directory would come back with what lay below": (
        [[[put(b"a/x"), put(b"b")]], [[delete(b"a/x", 2)], [delete(b"a", 2, directory=True)]], []],
        [3],
        [delete(b"a", 2, directory=True)],
    ),
    "an older deletion would stand instead": (
        [[[put(b"a")]], [[delete(b"a", 2)]], [[put(b"a")]], [[delete(b"a", 4)]], [[put(b"b")]]],
        [1, 3, 4],
        [delete(b"a", 4)],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_a_retired_chunk_said_must_be_said_again(rule: str) -> None:
    """Each rule of "Retiring" by the case that it is for: with it a replay is right, without it
    not."""
    before, leaving, said = RULES[rule]
    for entries, right in (said, True), ([], False):
        tale = history([*before, [entries] if entries else []], {2 + len(before): leaving})
        followed, replayed = MemoryStore(), MemoryStore()
        tale.apply_to(followed)
        tale.apply_to(replayed, without=tale.retired)
        assert (dump(followed, tale) == dump(replayed, tale)) is right


def test_stopped_again_and_again() -> None:
    """Each next process comes a little further, and some stop at once."""
    for seed in range(60):
        draw = random.Random(seed)
        tale = random_purged_history(draw)
        expected, index = MemoryStore(), MemoryStore()
        tale.apply_to(expected)
        while True:
            failing = Piecewise.failing_after(index, draw.randint(0, 80), seed=draw.randint(0, 999))
            if not failing.stopped(lambda failing=failing, tale=tale: tale.catch_up(failing)):
                break
        assert dump(index, tale) == dump(expected, tale), seed


DROPS = history(
    [
        [[put(b"a/x", 3), put(b"b")]],
        [[delete(b"a/x", 2), delete(b"a", 2, directory=True)]],
        [[carried(put(b"b"), 2)]],
        [],
    ],
    {4: [1], 5: [2]},
)
"""A tree comes, is deleted, and when its chunk is gone the chunk with the deletions goes."""


def test_stopped_at_any_step_of_forgetting() -> None:
    expected = MemoryStore()
    DROPS.apply_to(expected)
    for calls in range(200):
        index = MemoryStore()
        failing = Piecewise.failing_after(index, calls, seed=calls)
        if not failing.stopped(lambda failing=failing: DROPS.catch_up(failing)):
            assert calls > 40
            return
        DROPS.catch_up(index)
        assert dump(index, DROPS) == dump(expected, DROPS), calls
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("processes", [2, 3])
def test_appliers_that_race_end_with_the_same_index(processes: int) -> None:
    """A slow process takes nothing away that came later, and leaves nothing that was forgotten."""
    for seed in range(40):
        draw = random.Random(seed)
        tale = DROPS if seed < 10 else random_purged_history(draw, max_commits=4)
        undisturbed, shared, turns = MemoryStore(), MemoryStore(), Turns(draw)
        tale.apply_to(undisturbed)
        for number in range(processes):

            def race(
                step: Callable[[], None],
                shared: MemoryStore = shared,
                tale: History = tale,
                seed: int = number,
            ) -> None:
                tale.catch_up(Piecewise(shared, step, random.Random(seed)))

            turns.add(race)
        turns.run()
        assert dump(shared, tale) == dump(undisturbed, tale), seed


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_process_that_slept_through_everything(number: int, comes_back: bool) -> None:
    """It applies one commit, and at any one step of it others apply all that follow, so that what
    it puts is long forgotten."""
    later = [[[put(b"a/x", 9)]]] if comes_back else []
    tale = history([*DROPS.entries[1:], *later], {4: [1], 5: [2]})
    expected = MemoryStore()
    tale.apply_to(expected)
    for calls in range(200):
        index = MemoryStore()
        tale.until(number).apply_to(index)
        left = [calls]

        def step(left: list[int] = left, index: MemoryStore = index) -> None:
            left[0] -= 1
            if left[0] == -1:
                tale.catch_up(index)

        tale.apply_one(Piecewise(index, step), number)
        if left[0] >= 0:
            assert calls > 5
            return
        assert dump(index, tale) == dump(expected, tale), calls
    raise AssertionError("it never came to its end")

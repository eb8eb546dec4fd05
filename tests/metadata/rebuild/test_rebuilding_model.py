"""Thousands of short histories: a rebuilt index is, byte for byte, the one that followed every
commit, however little memory there was."""

from __future__ import annotations

import random
from functools import cache

import pytest

from metadata.kv.memory import MemoryStore
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.memory_limits import DEFAULT_LIMITS, MemoryLimits
from metadata.rebuild.repaired_index import RepairedIndex
from tests.metadata.commit_histories import History, random_history, random_purged_history
from tests.metadata.rebuild.histories import followed, rebuild_into

HISTORIES = 60
LIMITS = {
    "all in memory": DEFAULT_LIMITS,
    "all through the file": MemoryLimits(part_entries=1, waiting_bytes=1),
    "some at a time": MemoryLimits(part_entries=2, waiting_bytes=300),
    "parts in memory": MemoryLimits(part_entries=5, waiting_bytes=1 << 20),
}


@cache
def made(seed: int) -> History:
    draw = random.Random(seed)
    return random_purged_history(draw) if seed % 2 else random_history(draw)


@cache
def index_of(seed: int) -> MemoryStore:
    return followed(made(seed))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_a_rebuilt_index_is_the_one_that_followed_every_commit(limits: MemoryLimits) -> None:
    for seed in range(HISTORIES):
        history, rebuilt = made(seed), MemoryStore()
        rebuild_into(EmptyIndex(rebuilt), history, limits)
        assert rebuilt._maps == index_of(seed)._maps, seed


def test_the_state_is_that_of_the_last_commit() -> None:
    history, index = made(1), MemoryStore()
    states = [history.apply_one(index, number) for number in range(len(history.commits))]
    found = rebuild_into(EmptyIndex(MemoryStore()), history)
    assert found == states[-1]


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, MemoryLimits(1, 1)], ids=["large", "small"])
def test_any_index_is_mended_to_the_one_that_followed_every_commit(limits: MemoryLimits) -> None:
    for seed in range(HISTORIES):
        draw = random.Random(-seed)
        history, other = made(seed), random_history(draw, sane=True)
        repaired = MemoryStore()
        other.apply_to(repaired)
        rebuild_into(RepairedIndex(repaired), history, limits)
        assert repaired._maps == index_of(seed)._maps, seed
        for sink in (again := RepairedIndex(repaired), compared := ComparedIndex(repaired)):
            rebuild_into(sink, history, limits)
        assert (again.changed, again.removed, compared.is_equal) == (0, 0, True), seed


def test_what_was_followed_is_found_equal_at_every_generation() -> None:
    for seed in range(20):
        history, index = made(seed), MemoryStore()
        for number, commit in enumerate(history.commits):
            history.apply_one(index, number)
            so_far, compared = history.until(commit.generation), ComparedIndex(index)
            rebuild_into(compared, so_far)
            assert compared.is_equal, (seed, compared.differences)

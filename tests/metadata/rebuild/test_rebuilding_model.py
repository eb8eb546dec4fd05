"""Thousands of short histories: a rebuilt index is, byte for byte, the one that followed every commit, however little memory there was."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_source import ChunkRef
from metadata.kv.memory import MemoryStore
from metadata.rebuild import rebuild
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.memory_limits import DEFAULT_LIMITS, MemoryLimits
from metadata.rebuild.mended_index import MendedIndex
from tests.metadata.commit_histories import (
    DATASET,
    History,
    random_history,
    random_purged_history,
)

HISTORIES = 150
LIMITS = {
    "all in memory": DEFAULT_LIMITS,
    "all through the file": MemoryLimits(part_entries=1, waiting_bytes=1),
    "some at a time": MemoryLimits(part_entries=2, waiting_bytes=300),
    "parts in memory": MemoryLimits(part_entries=5, waiting_bytes=1 << 20),
}


def made(seed: int) -> History:
    draw = random.Random(seed)
    return random_purged_history(draw) if seed % 2 else random_history(draw)


def head_reader(history: History) -> Callable[[ChunkRef], ChunkHead]:
    """What is retired is not read, whether it is there or not."""
    numbers = history.retired

    def read(ref: ChunkRef) -> ChunkHead:
        assert int.from_bytes(ref.id.value, "big") not in numbers
        return history.head(ref.id)

    return read


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_a_rebuilt_index_is_the_one_that_followed_every_commit(limits: MemoryLimits) -> None:
    for seed in range(HISTORIES):
        history = made(seed)
        followed, rebuilt = MemoryStore(), MemoryStore()
        history.apply_to(followed)
        rebuild(DATASET, history.commits, head_reader(history), EmptyIndex(rebuilt), limits=limits)
        assert rebuilt._maps == followed._maps, seed


def test_the_state_is_that_of_the_last_commit() -> None:
    history = made(0)
    followed = MemoryStore()
    states = [history.apply_one(followed, number) for number in range(len(history.commits))]
    found = rebuild(DATASET, history.commits, head_reader(history), EmptyIndex(MemoryStore()))
    assert found == states[-1]


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, MemoryLimits(1, 1)], ids=["large", "small"])
def test_any_index_is_mended_to_the_one_that_followed_every_commit(limits: MemoryLimits) -> None:
    for seed in range(HISTORIES):
        draw = random.Random(-seed)
        history, other = made(seed), random_history(draw, sane=True)
        followed, mended = MemoryStore(), MemoryStore()
        history.apply_to(followed)
        other.apply_to(mended)
        rebuild(DATASET, history.commits, head_reader(history), MendedIndex(mended), limits=limits)
        assert mended._maps == followed._maps, seed
        for sink in (again := MendedIndex(mended), compared := ComparedIndex(mended)):
            rebuild(DATASET, history.commits, head_reader(history), sink, limits=limits)
        assert (again.changed, again.removed, compared.is_equal) == (0, 0, True), seed


def test_what_was_followed_is_found_equal_at_every_generation() -> None:
    for seed in range(30):
        history, index = made(seed), MemoryStore()
        for number, commit in enumerate(history.commits):
            history.apply_one(index, number)
            so_far, compared = history.until(commit.generation), ComparedIndex(index)
            rebuild(DATASET, so_far.commits, head_reader(so_far), compared)
            assert compared.is_equal, (seed, compared.differences)

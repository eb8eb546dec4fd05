"""Thousands of short histories: a rebuilt index is, byte for byte, the one that followed every commit."""

from __future__ import annotations

import random

import pytest

from chunkstore.chunk_format import ChunkHead, decode_head
from chunkstore.chunk_source import ChunkRef
from metadata.kv.memory import MemoryStore
from metadata.rebuild import rebuild
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.memory_limits import DEFAULT_LIMITS, MemoryLimits
from metadata.rebuild.mended_index import MendedIndex
from tests.metadata.commit_histories import DATASET, History, random_history

HISTORIES = 150


def head_reader(history: History):
    heads = {
        ref: data
        for commit, encoded in zip(history.commits, history.heads, strict=True)
        for ref, data in zip(commit.added, encoded, strict=True)
    }

    def read(ref: ChunkRef) -> ChunkHead:
        return decode_head(heads[ref], ref.id)

    return read


@pytest.mark.parametrize(
    "limits",
    [
        DEFAULT_LIMITS,
        MemoryLimits(part_entries=1, waiting_bytes=1),
        MemoryLimits(part_entries=2, waiting_bytes=300),
        MemoryLimits(part_entries=5, waiting_bytes=1 << 20),
    ],
    ids=["all in memory", "all in the file", "some at a time", "parts in memory"],
)
def test_a_rebuilt_index_is_the_one_that_followed_every_commit(limits: MemoryLimits) -> None:
    for seed in range(HISTORIES):
        history = random_history(random.Random(seed))
        followed, rebuilt = MemoryStore(), MemoryStore()
        history.apply_to(followed)
        rebuild(DATASET, history.commits, head_reader(history), EmptyIndex(rebuilt), limits=limits)
        assert rebuilt._maps == followed._maps, seed


def test_mending_and_comparing() -> None:
    for seed in range(HISTORIES):
        draw = random.Random(seed)
        history, other = random_history(draw), random_history(draw, sane=True)
        followed, mended = MemoryStore(), MemoryStore()
        history.apply_to(followed)
        other.apply_to(mended)
        sink = MendedIndex(mended)
        rebuild(DATASET, history.commits, head_reader(history), sink)
        assert mended._maps == followed._maps, seed
        compared = ComparedIndex(mended)
        rebuild(DATASET, history.commits, head_reader(history), compared)
        assert compared.is_equal

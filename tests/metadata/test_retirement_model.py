"""Random histories in which chunks are purged: the index is a function of the commits and of the chunks that are not retired."""

from __future__ import annotations

import random

import pytest

from metadata.kv.memory import MemoryStore
from tests.metadata.commit_histories import dump, random_purged_history
from tests.metadata.test_namespace_model import check

HISTORIES = 1200


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
    assert retirements > 500

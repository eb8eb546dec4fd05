"""The cache that a shadow policy would fill, beside plain lists of what it should count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import AdmitAll
from chunkstore.ssd.guarded_policy import GuardedPolicy
from chunkstore.ssd.policies.baselines import AdmitEverything
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_counts import CountedRow, PolicyCounts, total_of
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import ChunkRead, dataset_tags
from chunkstore.ssd.shadow_cache import MAX_CHUNKS, ShadowCache

MIB = 1 << 20
ROW = CountedRow("d", "d", "job")
DATASET = DatasetRef("d", b"i" * 16)


class Predicts(AdmitEverything):
    """A policy over a table of next uses."""

    def __init__(self, uses: Mapping[int, float]) -> None:
        self.uses = uses
        self.costs: list[float | None] = []

    def next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return np.array([self.uses.get(key, math.inf) for key in keys])

    def evicts_next(self, next_use: float | None) -> None:
        self.costs.append(next_use)


def shadow(name: str = "lru", chunks: int = 3) -> ShadowCache:
    made = ShadowCache(GuardedPolicy(PolicyChoice(), name))
    made.resize(chunks * 4 * MIB)
    return made


def read(cache: ShadowCache, *keys: int) -> PolicyCounts:
    """Read chunks whole; return what was counted for it."""
    before = total_of(cache.counts.all())
    for key in keys:
        cache.asked(ROW, key, 4 * MIB, 4 * MIB, begins=True)
    after = total_of(cache.counts.all())
    return PolicyCounts(
        *(
            (getattr(after, name) - getattr(before, name)) // (4 * MIB)
            for name in PolicyCounts.__slots__
        )
    )


def test_without_predictions_it_is_an_lru() -> None:
    cache = shadow()
    assert read(cache, 1, 2, 3, 1).hit_bytes == 1
    assert read(cache, 4) == PolicyCounts(
        miss_bytes=1, admitted_bytes=1, written_bytes=1, evicted_bytes=1
    )
    assert read(cache, 1, 3, 4).hit_bytes == 3
    assert read(cache, 2).miss_bytes == 1
    rows = cache.counts.all()
    assert rows[CountedRow("d", "d")].evicted_bytes == 2 * 4 * MIB, "of no job"


def test_what_is_used_last_is_evicted_first() -> None:
    cache = shadow()
    policy = Predicts({1: 30.0, 2: 10.0, 3: 20.0})
    cache.policy = GuardedPolicy(PolicyChoice(), "all", lambda *_: policy)
    read(cache, 1, 2)
    cache.refresh(0.0)
    assert policy.costs == [None], "there is room"
    read(cache, 3)
    cache.refresh(0.0)
    read(cache, 4, 5)
    assert policy.costs == [None, 30.0, 20.0, 10.0]
    assert read(cache, 2, 4, 5).hit_bytes == 3


def test_a_part_that_is_missed_costs_the_chunk_too() -> None:
    cache = shadow()
    cache.asked(ROW, 1, MIB, 4 * MIB, begins=True)
    for _ in range(3):
        cache.asked(ROW, 1, MIB, 4 * MIB, begins=False)
    assert total_of(cache.counts.all()) == PolicyCounts(
        hit_bytes=3 * MIB,
        miss_bytes=MIB,
        admitted_bytes=4 * MIB,
        written_bytes=4 * MIB,
        filled_bytes=4 * MIB,
    )


def test_a_large_tier_is_sampled_and_its_counts_scaled() -> None:
    cache = shadow(chunks=8 * MAX_CHUNKS)
    chosen = np.random.default_rng(1).integers(0, 1 << 63, 4000, np.int64).tolist()
    counted = read(cache, *chosen)
    assert abs(counted.miss_bytes - 4000) < 500
    assert abs(read(cache, *chosen).hit_bytes - 4000) < 500
    assert len(cache._cached) < 700


def test_a_runner_asks_its_shadow_beside_its_policy() -> None:
    runner = PolicyRunner(
        PolicyChoice("reject-first", "all"), AdmitAll(), names={DATASET.id: DATASET.name}
    )
    runner.budget_bytes = 100 * MIB
    runner.tend()
    tags = dataset_tags(DATASET, "job")
    for number in (1, 2, 1):
        asked = ChunkRead(tags, DATASET.id, bytes([number] * 16), 0, 4 * MIB, 4 * MIB)
        runner.requested(asked, hit=False)
        runner.admits(asked)
    size = 4 * MIB
    acting, shadow = runner.counts.all()[ROW], runner.shadow
    assert (acting.miss_bytes, acting.admitted_bytes, acting.refused_bytes) == (
        3 * size,
        size,
        2 * size,
    )
    assert shadow is not None
    assert shadow.counts.all()[ROW] == PolicyCounts(
        hit_bytes=size, miss_bytes=2 * size, admitted_bytes=2 * size, written_bytes=2 * size
    )
    runner.change(PolicyChoice("all", "hybrid"))
    assert runner.shadow is not shadow
    runner.change(PolicyChoice("all"))
    assert runner.shadow is None


def test_a_shadow_counts_each_part_and_its_policy_each_chunk() -> None:
    runner = PolicyRunner(PolicyChoice("all", "all"), AdmitAll(), names={DATASET.id: DATASET.name})
    runner.budget_bytes = 100 * MIB
    runner.tend()
    tags, shadow = dataset_tags(DATASET, "job"), runner.shadow
    assert shadow is not None

    def read_part(number: int) -> None:
        asked = ChunkRead(tags, DATASET.id, b"c" * 16, number * MIB, MIB, 4 * MIB)
        runner.requested(asked, hit=False)

    read_part(0)
    read_part(1)
    counts = shadow.counts.all()[ROW]
    assert (counts.miss_bytes, counts.hit_bytes) == (MIB, MIB)


def test_a_shadow_learns_afterwards_of_reads_during_a_refresh() -> None:
    runner = PolicyRunner(
        PolicyChoice("all", "all"),
        AdmitAll(),
        names={DATASET.id: DATASET.name},
        now=lambda: 100.0,  # no further refresh is due
    )
    runner.budget_bytes = 100 * MIB
    assert runner.tend()
    tags, shadow = dataset_tags(DATASET, "job"), runner.shadow
    assert shadow is not None
    with runner._lock:  # the policies are busy
        for number in range(3):
            asked = ChunkRead(tags, DATASET.id, b"c" * 16, number * MIB, MIB, 4 * MIB)
            runner.requested(asked, hit=False)
    assert shadow.counts.all() == {}
    assert not runner.tend()
    assert shadow.counts.all()[ROW] == PolicyCounts(
        hit_bytes=2 * MIB,
        miss_bytes=MIB,
        admitted_bytes=4 * MIB,
        written_bytes=4 * MIB,
        filled_bytes=4 * MIB,
    )
    assert not runner.tend()
    assert shadow.counts.all()[ROW].hit_bytes == 2 * MIB, "it is told once"

"""Uniform caching: what an allocator gives a dataset on a tier, chosen, kept and given back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chunkstore.ssd.allocated_quotas import AllocatedQuotas
from chunkstore.ssd.eviction import DatasetLimits, above_quota, ranking_by
from chunkstore.ssd.limits_folder import LimitsFolder, NamedLimits
from chunkstore.ssd.segment_index import FREE
from chunkstore.ssd.segment_store import SegmentStore
from tests.chunkstore.ssd.test_policies import SIZE, A, B, chosen, region

MIB = 1 << 20
C = b"c" * 16


def allocated(regions: int, **own: int | bool) -> DatasetLimits:
    return DatasetLimits(allocated_bytes=regions * SIZE + SIZE // 2, **own)  # type: ignore[arg-type]


# What is chosen


def test_at_its_quota_a_dataset_gets_nothing_more_though_there_is_room() -> None:
    regions = [region(0), region(1), region(2, state=FREE)]
    assert chosen(regions, {A: allocated(3)}) == 2
    assert chosen(regions, {A: allocated(2)}) is None
    assert chosen([region(2, state=FREE)], {A: allocated(0)}) is None


def test_what_is_within_its_quota_stays() -> None:
    regions = [region(0, last_used=1), region(1, B, last_used=2), region(2, C, last_used=3)]
    assert chosen(regions, {A: allocated(2), B: allocated(1)}, A) == 2
    assert chosen(regions, {A: allocated(2), B: allocated(1), C: allocated(1)}, A) is None


def test_datasets_without_a_quota_share_what_is_left_by_the_tiers_order() -> None:
    regions = [region(0, last_used=1), region(1, B, last_used=5), region(2, C, last_used=3)]
    assert chosen(regions, {A: allocated(1)}, B) == 2


def test_what_is_above_its_quota_leaves_first() -> None:
    regions = [region(0, generation=7), region(1, generation=3), region(2, B, last_used=1)]
    limits = {A: allocated(1)}
    assert chosen(regions, limits, B) == 1
    assert chosen(regions, limits, B, busy={1}) == 2


def test_a_users_own_quota_counts_if_it_is_smaller_and_pins_are_the_users() -> None:
    regions = [region(0), region(1), region(2, state=FREE)]
    assert chosen(regions, {A: allocated(9, quota_bytes=2 * SIZE)}) is None
    assert chosen(regions, {A: allocated(9, quota_bytes=3 * SIZE)}) == 2
    assert chosen(regions, {A: allocated(1, pinned=True)}) == 2


def test_what_is_evicted_from_a_lowered_quota_is_a_sample() -> None:
    regions = [region(n, generation=random.Random(n).getrandbits(63)) for n in range(100)]
    limits = {A: allocated(40)}
    surplus = above_quota(regions, limits.__getitem__, SIZE, ranking_by("lru"))
    assert len(surplus) == 60
    assert 35 < sum(of.number for of in surplus) / 60 < 65


# The file


def test_quotas_are_kept_beside_what_users_set(tmp_path: Path) -> None:
    now = [0.0]
    limits, quotas = LimitsFolder(tmp_path, lambda: now[0]), AllocatedQuotas(tmp_path)
    limits.write(A, NamedLimits("first", DatasetLimits(quota_bytes=5)))
    quotas.write({A: 7, B: 9})
    now[0] = 2
    assert limits.of(A) == DatasetLimits(quota_bytes=5, allocated_bytes=7)
    assert limits.of(B) == DatasetLimits(allocated_bytes=9)
    assert limits.of(C) == DatasetLimits()
    assert limits.read()[A].limits == DatasetLimits(quota_bytes=5)
    quotas.write({})
    now[0] = 4
    assert limits.of(B) == DatasetLimits()


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"zz": 1}', b'{"61": "x"}', b"\xff"])
def test_a_damaged_file_allocates_nothing(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "allocated.json").write_bytes(damage)
    quotas = AllocatedQuotas(tmp_path)
    assert (quotas.read(), quotas.read()) == ({}, {})
    assert len(caplog.records) == 1
    quotas.write({A: 1})
    assert quotas.read() == {A: 1}


# A real tier


def hit_share(store: SegmentStore, chunks: int, epochs: int, seed: int) -> float:
    """The share of hits after the first epoch, each epoch in a random order of its own."""
    rng, hits = random.Random(seed), 0
    data = memoryview(rng.randbytes(MIB))
    for epoch in range(epochs):
        for number in rng.sample(range(chunks), chunks):
            chunk = number.to_bytes(16, "big")
            if store.read_whole(chunk) is not None:
                hits += epoch > 0
            elif A not in store.full:
                store.append(A, chunk, 0, data, is_end=True)
        store.tend()
    return hits / (epochs - 1) / chunks


def test_uniform_caching_hits_what_is_cached_where_lru_hits_little(tmp_path: Path) -> None:
    chunks, budget = 60, 32 * MIB
    uniform = SegmentStore(
        *(tmp_path / "uniform", tmp_path / "uniform-index", budget),
        limits_of=lambda _: DatasetLimits(allocated_bytes=budget),
    )
    share = uniform.held_bytes(A)
    found = hit_share(uniform, chunks, 4, seed=1)
    uniform.tend()
    share = uniform.held_bytes(A) / MIB / chunks
    assert share > 0.4
    assert found == pytest.approx(share, abs=0.05)
    uniform.close()
    lru = SegmentStore(tmp_path / "lru", tmp_path / "lru-index", budget)
    assert hit_share(lru, chunks, 4, seed=1) < 0.6 * share
    lru.close()


def test_less_quota_evicts_and_a_full_dataset_is_known_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    limits = [DatasetLimits(allocated_bytes=24 * MIB)]
    store = SegmentStore(
        *(tmp_path / "ssd", tmp_path / "index", 40 * MIB), limits_of=lambda _: limits[0]
    )
    data = memoryview(random.Random(1).randbytes(MIB))
    kept = [store.append(A, n.to_bytes(16, "big"), 0, data, is_end=True) for n in range(40)]
    store.tend()
    assert not all(kept)
    assert store.full == {A}
    assert 20 * MIB < store.held_bytes(A) <= 24 * MIB
    limits[0] = DatasetLimits(allocated_bytes=10 * MIB)
    store.tend()
    store.tend()
    assert 0 < store.held_bytes(A) <= 10 * MIB
    limits[0] = DatasetLimits(allocated_bytes=40 * MIB)
    store.tend()
    assert store.full == set()
    assert store.append(A, b"n" * 16, 0, data, is_end=True)
    store.close()


@pytest.mark.parametrize("chunk_bytes", [MIB, 700_001, 300_000])
def test_the_quota_that_a_dataset_needs_holds_all_of_it(tmp_path: Path, chunk_bytes: int) -> None:
    count = 36 * MIB // chunk_bytes
    quotas: list[int] = []
    store = SegmentStore(
        *(tmp_path / "ssd", tmp_path / "index", 64 * MIB),
        limits_of=lambda _: DatasetLimits(allocated_bytes=quotas[0] if quotas else 0),
    )
    quotas.append(store.needed_bytes(count * chunk_bytes))
    assert quotas[0] <= 44 * MIB
    data = memoryview(random.Random(1).randbytes(chunk_bytes))
    assert all(store.append(A, n.to_bytes(16, "big"), 0, data, is_end=True) for n in range(count))
    store.tend()
    assert count * chunk_bytes <= store.held_bytes(A) < store.taken_bytes(A) <= quotas[0]
    store.close()

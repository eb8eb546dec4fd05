"""Effective bytes by bitsets, against the hits of jobs that read chunk by chunk."""

from __future__ import annotations

import random

import pytest

from dieselfs.allocation.effectiveness import CachedChunkSet, CacheUse, JobEpoch

CHUNKS = 400


def read_epoch(
    chance: random.Random, cache: CachedChunkSet, job: JobEpoch, quota: int, chunks: int = CHUNKS
) -> float:
    """Read chunks in random order with uniform caching; return the hit share."""
    hits = 0
    job.begin()
    for chunk in chance.sample(range(CHUNKS), chunks):
        hits += bool(cache.bits[chunk])
        if not cache.bits[chunk] and cache.held_bytes < quota:
            cache.admit([chunk])
        job.read([chunk])
    return hits / chunks


def test_what_an_epoch_caches_is_effective_in_the_next() -> None:
    chance, cache = random.Random(1), CachedChunkSet([1] * CHUNKS)
    job = JobEpoch(cache)
    assert read_epoch(chance, cache, job, 100, chunks=300) == 0
    assert job.cache_use(150) == CacheUse(150, 100, 0.0)
    job.begin()
    assert job.effective_bytes() == 100
    assert read_epoch(chance, cache, job, 100) == 0.25
    assert job.effective_bytes() == 100  # of the next epoch


def test_within_an_epoch_the_hit_share_of_uniform_caching_stays() -> None:
    chance, cache = random.Random(2), CachedChunkSet([1] * CHUNKS)
    cache.admit(range(0, CHUNKS, 4))
    job = JobEpoch(cache)
    read_epoch(chance, cache, job, 100, chunks=200)
    assert job.effective_bytes() / CHUNKS == pytest.approx(0.25, abs=0.06)


def test_a_shared_cache_is_effective_for_the_job_that_has_not_read_it() -> None:
    cache = CachedChunkSet([10, 20, 30, 40])
    first, second = JobEpoch(cache), JobEpoch(cache)
    first.read([0, 3])
    cache.admit([0, 3])
    assert first.effective_bytes() == 0
    assert second.effective_bytes() == 50
    second.read([0])
    assert second.effective_bytes() == pytest.approx(40 / 90 * 100)
    cache.evict([3])
    assert second.effective_bytes() == 0
    assert cache.held_bytes == 10


def test_chunks_that_are_read_many_times_an_epoch_are_effective_at_once() -> None:
    cache = CachedChunkSet([10] * 4)
    job = JobEpoch(cache, repeats_items=True)
    job.read([0, 1])
    cache.admit([0, 1])
    assert job.effective_bytes() == 20

"""The replay of cache policies: its traces, its cache, Belady's optimum, and the whole, small."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.harness import REPOSITORY
from benchmarks.policy_replay import RegionCache, optimum, replay
from benchmarks.policy_workloads import ORDERS, WORKLOADS, Order, Trace, Workload, trace_of
from chunkstore.ssd.policies.baselines import AdmitEverything, RejectFirstMiss
from chunkstore.ssd.policies.tags import Bucket

SEGMENTS = 256


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_each_job_reads_each_segment_of_its_partitions_once(
    workload: Workload, order: Order
) -> None:
    trace = trace_of(workload, order, SEGMENTS, seed=1)
    assert (np.diff(trace.times_s) >= 0).all()
    partitions = [job for batch in workload.batches for job in batch]
    for number, wanted in enumerate(partitions):
        places = trace.places[trace.job_numbers == number]
        assert len(set(places.tolist())) == len(places) == SEGMENTS * len(wanted)
        # Partition after partition, in the order of Table 3.
        assert (places // SEGMENTS).tolist() == [of for of in wanted for _ in range(SEGMENTS)]


def test_a_batch_starts_when_the_one_before_has_ended() -> None:
    jobs = trace_of(WORKLOADS[2], ORDERS[0], SEGMENTS, seed=1).jobs
    assert [job.begin_s for job in jobs] == pytest.approx([0] * 3 + [2000 / 3] * 3 + [4000 / 3] * 3)


def test_readers_walk_the_splits_of_a_queue_side_by_side() -> None:
    trace = trace_of(WORKLOADS[1], ORDERS[0], SEGMENTS, seed=1)
    first = trace.places[trace.job_numbers == 0][:12] - SEGMENTS
    assert first.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 10, 12]  # 5 readers, splits of 2


def made(places: list[int], room: int) -> Trace:
    """A trace of one job whose cache has room for `room` segments."""
    trace = trace_of(WORKLOADS[1], ORDERS[0], SEGMENTS, seed=1)
    workload = type(trace.workload)("made", (), room / SEGMENTS, 1)
    count = len(places)
    return Trace(
        workload,
        SEGMENTS,
        np.arange(count, dtype=np.float64),
        np.zeros(count, np.int64),
        np.array(places),
        trace.jobs[:1],
    )


def most_hits(places: tuple[int, ...], room: int) -> int:
    """The optimum by trying everything."""

    @lru_cache(None)
    def from_here(at: int, cached: frozenset[int]) -> int:
        if at == len(places):
            return 0
        place = places[at]
        if place in cached:
            return 1 + from_here(at + 1, cached)
        choices = [cached]
        if len(cached) < room:
            choices.append(cached | {place})
        choices += [cached - {gone} | {place} for gone in cached]
        return max(from_here(at + 1, choice) for choice in choices)

    return from_here(0, frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    choose = random.Random(seed)
    places = [choose.randrange(6) for _ in range(16)]
    room = choose.randrange(1, 4)
    assert optimum(made(places, room)) * len(places) == most_hits(tuple(places), room)


@pytest.mark.parametrize(("is_lru", "hits"), [(True, [1, 3]), (False, [2, 3])])
def test_lru_keeps_what_was_used_and_fifo_what_came_last(is_lru: bool, hits: list[int]) -> None:
    cache = RegionCache(2, 1, is_lru=is_lru)
    assert cache.insert(1) == cache.insert(2) == []
    assert cache.hit(1)
    assert cache.insert(3) == ([2] if is_lru else [1])
    assert [key for key in (1, 2, 3) if cache.hit(key)] == hits


def test_a_region_is_evicted_as_a_whole() -> None:
    cache = RegionCache(4, 2, is_lru=True)
    assert [cache.insert(key) for key in range(5)] == [[], [], [], [], [0, 1]]
    assert [cache.hit(key) for key in range(5)] == [False, False, True, True, True]


class KeepsSome(AdmitEverything):
    """A policy that reinserts even keys."""

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        return key % 2 == 0


@pytest.mark.parametrize("region_segments", [1, 4])
def test_reinsertions_count_as_written_and_not_as_fills(region_segments: int) -> None:
    trace = made(list(range(100)) * 2, room=40)
    found = replay(trace, KeepsSome(), region_segments=region_segments)
    assert found.reinserted > 0
    assert found.written == found.fills + found.reinserted
    assert found.fills == found.requests - found.hits
    assert found.hits > 0  # plain LRU has none in a cycle


def test_what_is_rejected_after_a_fetch_counts_as_filled() -> None:
    found = replay(made([1, 2, 1, 2, 1, 2], room=10), RejectFirstMiss())
    assert (found.hits, found.fills, found.written) == (2, 4, 2)


def test_one_order_for_all_gives_lru_nothing_in_the_pipeline() -> None:
    trace = trace_of(WORKLOADS[1], ORDERS[0], SEGMENTS, seed=1)
    assert replay(trace, AdmitEverything()).hits == 0


def test_the_benchmark_works_small() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_ssd_policies", "--quick"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    counts = Counter(line["question"] for line in lines)
    assert counts["table 3"] == 3 * 5 * len(ORDERS)
    for line in lines:
        if line["question"] == "table 3":
            assert 0 <= line["of_optimum"] <= 1
        if line["question"] == "figure 9" and line["policy"] in ("historic", "future", "hybrid"):
            assert line["written_over_budget"] <= 1.05
            assert line["fills_over_dynamic"] < 0.1  # the paper: 96 % less
    own = {
        (line["workload"], line["policy"]): line["over_lru"]
        for line in lines
        if line.get("order") == "own-splits" and line["question"] == "table 3"
    }
    assert own["synchronized", "future"] > 1.3
    assert own["pipelined", "future"] > 1.8
    assert own["pipelined", "historic"] < 1 < own["pipelined", "hybrid"]
    assert own["sequential", "future"] > 1.4

"""The request history window: what it counts, how far off it is, what it costs."""

from __future__ import annotations

import random
import time

import pytest

from chunkstore.ssd.policies import request_history as limits
from chunkstore.ssd.policies.request_history import RequestedBytes, RequestHistory
from chunkstore.ssd.policies.seen_segments import SeenSegments
from chunkstore.ssd.policies.segment_buckets import Bucket

A, B = Bucket("d:a"), Bucket("d:b")
RANDOM = random.Random(18)


def keys(count: int) -> list[int]:
    return [RANDOM.getrandbits(64) for _ in range(count)]


def history(**other: int) -> RequestHistory:
    return RequestHistory(window_s=60, slices=6, capacity_segments=other.get("capacity", 10_000))


def test_unique_and_total_bytes_of_each_bucket() -> None:
    found = history()
    first, second = keys(2)
    for key in (first, second, first):
        found.add("j", A, key, 100)
    found.add("k", B, first + 1, 7)
    assert found.requested() == {A: RequestedBytes(200, 300), B: RequestedBytes(7, 7)}
    assert {job: set(buckets) for job, buckets in found.reads().items()} == {"j": {A}, "k": {B}}


def test_a_request_without_a_job_counts_bytes_and_no_job() -> None:
    found = history()
    found.add("", A, 1, 5)
    assert found.requested()[A].total == 5
    assert not found.reads()


def test_slices_expire_with_their_jobs_and_buckets() -> None:
    found = history()
    old, again = keys(2)
    found.add("old", A, old, 10)
    found.add("both", A, again, 10)
    found.advance(30)
    found.add("both", A, again, 10)
    assert found.requested()[A] == RequestedBytes(20, 30)
    found.advance(75)  # the slice of the time 0 is out of the window, that of the time 30 is not
    assert found.requested() == {A: RequestedBytes(10, 10)}
    assert set(found.reads()) == {"both"}
    found.advance(120)
    assert not found.requested()
    assert not found.reads()
    found.add("new", A, old, 10)  # forgotten, so it is unique again
    assert found.requested()[A] == RequestedBytes(10, 10)


def test_a_leap_of_many_windows_forgets_all_and_time_never_runs_backwards() -> None:
    found = history()
    found.add("j", A, 1, 10)
    found.advance(1e7)
    assert not found.requested()
    found.add("j", A, 1, 10)
    found.advance(0)
    found.add("j", A, 1, 10)
    assert found.requested()[A] == RequestedBytes(10, 20)


def test_a_model_of_sets_agrees_over_many_slices() -> None:
    found = history()
    last: dict[int, int] = {}
    totals: list[tuple[int, int]] = []
    known = keys(300)
    for moment in range(0, 400, 5):
        found.advance(moment)
        for key in RANDOM.choices(known, k=20):
            found.add("j", A, key, 3)
            last[key] = moment // 10
            totals.append((moment // 10, 3))
        oldest = moment // 10 - 6  # the current slice and six whole ones
        unique = 3 * sum(slice_ >= oldest for slice_ in last.values())
        total = sum(length for slice_, length in totals if slice_ >= oldest)
        assert found.requested()[A] == RequestedBytes(unique, total)


def test_at_its_capacity_the_table_is_wrong_about_few() -> None:
    seen = SeenSegments(200_000)
    found = keys(200_000)
    taken_for_known = sum(seen.mark(key, 1) != 0 for key in found)
    forgotten = sum(seen.mark(key, 2) == 0 for key in found)
    assert taken_for_known < 200_000 * 0.0005
    assert forgotten < 200_000 * 0.002


def test_beyond_its_capacity_the_table_still_works() -> None:
    seen = SeenSegments(1000)
    found = keys(20_000)
    for key in found:
        seen.mark(key, 1)
    assert all(seen.mark(key, 2) for key in found[-20:])
    assert seen.memory_bytes < 6000


def test_ten_million_segments_take_less_than_64_mib() -> None:
    assert RequestHistory().memory_bytes < 50 << 20


def test_buckets_and_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BUCKETS", 10)
    monkeypatch.setattr(limits, "MAX_READS", 5)
    found = history()
    for number, key in enumerate(keys(50)):
        found.add(f"job{number}", Bucket(str(number)), key, 1)
    assert len(found.requested()) == 10
    assert len(found.reads()) == 5


def test_a_request_costs_little() -> None:
    found = RequestHistory(capacity_segments=100_000)
    asked = keys(50_000)
    begin = time.process_time()
    for key in asked:
        found.add("j", A, key, 1)
    # 1.5 µs on a busy machine (docs/decisions/0029); the bound is for the slowest.
    assert (time.process_time() - begin) / len(asked) < 20e-6


@pytest.mark.parametrize(
    ("window_s", "slices", "capacity"),
    [(0, 6, 9), (-1, 6, 9), (float("nan"), 6, 9), (60, 0, 9), (60, 255, 9), (60, 6, 0)],
)
def test_bad_settings_are_errors(window_s: float, slices: int, capacity: int) -> None:
    with pytest.raises(ValueError):
        RequestHistory(window_s, slices, capacity)

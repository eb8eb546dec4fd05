"""The replay: what it counts, and in which order it asks the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chunkstore.ssd.policies.baselines import AdmitEverything, RejectFirstMiss
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket
from dieselfs.cache.advice.replay import CacheSize, replay
from dieselfs.cache.advice.request_trace import Publication
from tests.dieselfs.cache.advice.made_traces import made


class KeepsSome(AdmitEverything):
    """A policy that reinserts even keys."""

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        return key % 2 == 0


@pytest.mark.parametrize("region_segments", [1, 4])
def test_reinsertions_count_as_written_and_not_as_fills(region_segments: int) -> None:
    trace = made(list(range(100)) * 2, [8] * 200)
    found = replay(trace, KeepsSome(), CacheSize(8 * 40, 8 * region_segments))
    assert found.reinserted > 0
    assert found.written == found.fills + found.reinserted
    assert found.fills == found.requested - found.hits
    assert found.hits > 0  # plain LRU has none in a cycle


def test_what_is_rejected_after_a_fetch_counts_as_filled() -> None:
    found = replay(made([1, 2, 1, 2, 1, 2]), RejectFirstMiss(), CacheSize(10))
    assert (found.hits, found.fills, found.written) == (2, 4, 2)
    assert found.absorbed_share == 2 / 6


def test_bytes_are_counted_and_segments_that_do_not_fit_bypass() -> None:
    found = replay(made([1, 2, 1, 2], [3, 9, 3, 9]), AdmitEverything(), CacheSize(5))
    assert (found.requested, found.hits, found.written) == (24, 3, 3)


class Told(AdmitEverything):
    """A policy that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def publish(self, specification: JobSpecification, now: float) -> None:
        self.calls.append((specification.job, now))

    def refresh(self, now: float) -> None:
        self.calls.append(("refresh", now))

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        self.calls.append((job, key))


def test_the_policy_hears_publications_refreshes_and_requests_in_the_order_of_time() -> None:
    jobs = [
        Publication(now, JobSpecification(name, "d", ())) for now, name in ((0, "a"), (11, "b"))
    ]
    policy, times = Told(), []
    replay(made(range(25), publications=jobs), policy, CacheSize(5), on_refresh=times.append)
    # The job b is heard of at the refresh after its publication.
    assert policy.calls == (
        [("a", 0), ("refresh", 0)]
        + [("job", key) for key in range(10)]
        + [("refresh", 10)]
        + [("job", key) for key in range(10, 20)]
        + [("b", 11), ("refresh", 20)]
        + [("job", key) for key in range(20, 25)]
        + [("refresh", 30)]
    )
    assert times == [0, 10, 20, 30]


class KeepsEvenKeys(KeepsSome):
    """A policy that predicts one time for each key, and notes what an admission costs."""

    def __init__(self) -> None:
        self.costs: list[float | None] = []

    def next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return np.array([1000.0 - key for key in keys])

    def evicts_next(self, next_use: float | None) -> None:
        self.costs.append(next_use)


def test_the_policy_hears_what_is_evicted_next_after_each_reinsertion_too() -> None:
    policy = KeepsEvenKeys()
    replay(made([2, 4, 5]), policy, CacheSize(2), "next-use")
    # 5 evicts 2, which is written again in place of 4, which is written again in place of 2.
    assert policy.costs[0] is None
    assert policy.costs[1:4] == pytest.approx([996, 998, 996])


def test_an_empty_trace_has_figures_too() -> None:
    assert replay(made([]), AdmitEverything(), CacheSize(5)).absorbed_share == 0

"""The cost of one decision of each cache policy, and the memory of the request history.

Expectation: 0.7 µs for a miss of *future*, most of it the history window; *next-use* looks up one
key more, and each plan that has the segment costs a comparison. Half of the segments are admitted.
The bar is 2 µs a segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness import report
from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket

_BUCKET = Bucket("d")
_ASKED = 10_000
_LENGTH = 4 << 20
PLANS = (1, 4, 8)


def costs(segments: int, history_segments: int) -> None:
    """Report the costs of all calls of a miss, and of the history at its capacity."""
    random = np.random.default_rng(1)
    keys = random.integers(0, 2**64, segments, dtype=np.uint64)
    for name in ("historic", "future", "hybrid", "next-use"):
        for plans in PLANS if name == "next-use" else PLANS[:1]:
            _decisions(name, plans, keys, random)
    _history(history_segments, random)


def _decisions(
    name: str,
    plans: int,
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]],
    random: np.random.Generator,
) -> None:
    segments = len(keys)
    policy = policy_of(PolicySettings(name), RequestHistory(capacity_segments=2 * segments))
    orders = [random.permutation(keys) for _ in range(plans)]
    for number, order in enumerate(orders):
        reads = PlannedReads(f"plan{number}", order.astype(np.uint32), 0, 100.0)
        policy.publish(JobSpecification(f"job{number}", "d", (_BUCKET,), plan=reads), 0)
    merge_s = _seconds(lambda: policy.refresh(0))
    policy.refresh(10)
    soonest = policy.next_uses(keys[:_ASKED].tolist())
    if soonest is not None:
        policy.evicts_next(float(np.median(soonest)))  # half of the segments are admitted
    # Requests go on along the first plan: those of another order would not be trusted.
    size = min(_ASKED, segments // 7)
    parts = [orders[0][at : at + size].tolist() for at in range(0, 7 * size, size)]
    figures = {
        "requested_us": _microseconds(lambda part: _request(policy, part), parts[:3]),
        "miss_us": _microseconds(lambda part: _miss(policy, part), parts[3:6]),
        "admits_us": _microseconds(lambda part: _admit(policy, part), parts[6:]),
        "ranked_key_us": _microseconds(policy.next_uses, parts[6:]),
    }
    report(
        "costs",
        policy=name,
        plans=plans,
        segments=segments,
        **figures,
        merge_s=merge_s,
        refresh_s=_seconds(lambda: policy.refresh(20)),
    )


def _request(policy: CachePolicy, keys: Sequence[int]) -> None:
    for key in keys:
        policy.requested("job0", _BUCKET, key, _LENGTH)


def _admit(policy: CachePolicy, keys: Sequence[int]) -> None:
    for key in keys:
        policy.admits(_BUCKET, key, _LENGTH)


def _miss(policy: CachePolicy, keys: Sequence[int]) -> None:
    for key in keys:
        policy.requested("job0", _BUCKET, key, _LENGTH)
        policy.admits(_BUCKET, key, _LENGTH)


def _microseconds(call: Callable[[Sequence[int]], object], parts: Sequence[list[int]]) -> float:
    """Return the time of one key: the least of all parts."""
    return min(_seconds(lambda part=part: call(part)) / len(part) for part in parts) * 1e6  # type: ignore[misc]


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _history(segments: int, random: np.random.Generator) -> None:
    history = RequestHistory(capacity_segments=segments)
    keys: list[int] = []
    for part in range(0, segments, 1_000_000):
        keys = random.integers(0, 2**64, min(1_000_000, segments - part), np.uint64).tolist()
        seconds = _seconds(lambda keys=keys: _fill(history, keys))  # type: ignore[misc]
    report(
        "costs",
        policy="history",
        segments=segments,
        requested_us=seconds / len(keys) * 1e6,
        table_mib=history.memory_bytes / 2**20,
    )


def _fill(history: RequestHistory, keys: Sequence[int]) -> None:
    for key in keys:
        history.add("job0", _BUCKET, key, _LENGTH)

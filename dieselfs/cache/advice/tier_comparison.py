"""What SSD tiers of several sizes, policies and region sizes would absorb of a trace.

The recommendation is the *knee*: the smallest size at which the best policy absorbs nine tenths of
the most that any size tried absorbs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from chunkstore.ssd.policies.names import NAMES
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.region_files import region_bytes_for
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES
from dieselfs.cache.advice.optimum import optimum
from dieselfs.cache.advice.replay import CacheSize, Replayed, replay
from dieselfs.cache.advice.request_trace import RequestTrace
from dieselfs.errors import UsageError

ORDERS: Final = ("lru", "fifo")
"""Tiers without a cache policy, by their orders of eviction."""
POLICIES: Final = (*ORDERS, *NAMES)
DEFAULT_SHARES: Final = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)
"""The sizes that are tried by default, over the working set."""
KNEE: Final = 0.9
_LEAST_SHARE: Final = 0.01
"""A tier that absorbs less is not recommended."""


@dataclass(frozen=True, slots=True)
class Question:
    """The tiers to be compared."""

    cache_bytes: Sequence[int] = ()
    """(): `DEFAULT_SHARES` of the working set."""
    policies: Sequence[str] = ()
    """(): all that differ, and need no write budget if there is none."""
    region_bytes: Sequence[int | None] = (None,)
    """0: chunks are evicted one by one; None: the size that a tier of the size would choose."""
    write_budget: float | None = None
    """Bytes a second; None: no limit."""


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """One tier and what it would have done."""

    policy: str
    cache_bytes: int
    region_bytes: int
    replayed: Replayed

    @property
    def absorbed_share(self) -> float:
        """Bytes that were not read from the slow store, over all bytes: the hit rate by bytes."""
        return self.replayed.absorbed_share

    @property
    def store_bytes(self) -> int:
        """Bytes read from the slow store."""
        return self.replayed.requested - self.replayed.hits


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of all tiers, in the order of size, region size and policy."""

    working_set_bytes: int
    outcomes: Sequence[TierOutcome]
    optimum_shares: Mapping[int, float]
    """Size -> the share that Belady's optimum would absorb."""

    @property
    def best(self) -> Sequence[TierOutcome]:
        """The best outcome of each size; of equal ones, that of the policy which is named first."""
        found: dict[int, TierOutcome] = {}
        for each in self.outcomes:
            known = found.get(each.cache_bytes)
            if known is None or each.absorbed_share > known.absorbed_share:
                found[each.cache_bytes] = each
        return list(found.values())

    @property
    def recommended(self) -> TierOutcome | None:
        """The knee; None if nothing absorbs anything worth a disk."""
        most = max(each.absorbed_share for each in self.best)
        if most < _LEAST_SHARE:
            return None
        return next(each for each in self.best if each.absorbed_share >= KNEE * most)


def compare(
    trace: RequestTrace, question: Question, advance: Callable[[int], None] = lambda requests: None
) -> Comparison:
    """Replay the trace through all tiers; raise `UsageError` if there is nothing to replay.

    `advance` is told of requests that were replayed. Takes about 3 µs for each request and tier.
    """
    working_set_bytes = _working_set(trace)
    policies = question.policies or _usual(question)
    sizes = sorted(set(question.cache_bytes or _shares_of(working_set_bytes)))
    tiers = [
        (policy, CacheSize(size, _region_of(trace, size, region)))
        for size in sizes
        for region in question.region_bytes
        for policy in dict.fromkeys(policies)
    ]
    for policy in policies:
        _policy(policy, question, 1)
    optima = {}
    for size in sizes:
        optima[size] = optimum(trace, size)
        advance(len(trace.keys))
    outcomes = [
        TierOutcome(
            policy,
            size.cache_bytes,
            size.region_bytes,
            _replay(trace, policy, size, question, advance),
        )
        for policy, size in tiers
    ]
    return Comparison(working_set_bytes, outcomes, optima)


def requests_of(trace: RequestTrace, question: Question) -> int:
    """Return how many requests `compare` replays in all."""
    sizes = len(set(question.cache_bytes)) or len(DEFAULT_SHARES)
    tiers = len(question.region_bytes) * len(set(question.policies or _usual(question)))
    return len(trace.keys) * sizes * (1 + tiers)


def _working_set(trace: RequestTrace) -> int:
    """Return the bytes of all distinct segments."""
    if not len(trace.keys):
        raise UsageError("the trace has no requests", "record one while a job reads")
    _, first = np.unique(trace.keys, return_index=True)
    if len(first) == len(trace.keys):
        raise UsageError(
            f"no chunk was read twice among {len(trace.keys):,} requests, so no cache helps",
            "record for longer than an epoch",
        )
    return int(trace.lengths[first].sum())


def _usual(question: Question) -> Sequence[str]:
    without = {"all"} if question.write_budget is not None else {"all", "dynamic"}
    return [name for name in POLICIES if name not in without]


def _shares_of(working_set_bytes: int) -> list[int]:
    return [max(1, round(working_set_bytes * share)) for share in DEFAULT_SHARES]


def _region_of(trace: RequestTrace, cache_bytes: int, wanted: int | None) -> int:
    """Return the bytes of a region, 0 for single chunks.

    They are whole chunks of the usual length: the model has no chunk in two regions, as tiers do.
    """
    if cache_bytes <= 0:
        raise UsageError("an SSD of 0 bytes", "give a positive size")
    chunk_bytes = max(1, int(np.median(trace.lengths)))
    tier_bytes = region_bytes_for(cache_bytes, DEFAULT_SEGMENT_BYTES)
    region_bytes = round((tier_bytes if wanted is None else wanted) / chunk_bytes) * chunk_bytes
    if region_bytes <= cache_bytes // 2:
        return region_bytes
    if wanted is None:  # an SSD of a few chunks, in a test
        return 0
    raise UsageError(
        f"regions of {wanted} bytes on an SSD of {cache_bytes} bytes",
        "an SSD has two regions at least",
    )


def _policy(name: str, question: Question, segments: int) -> CachePolicy:
    if name not in POLICIES:
        raise UsageError(f"no cache policy {name!r}", f"write {', '.join(POLICIES)}")
    settings = PolicySettings("all" if name in ORDERS else name, write_budget=question.write_budget)
    try:
        return policy_of(settings, RequestHistory(capacity_segments=max(1024, 2 * segments)))
    except ValueError as error:
        raise UsageError(str(error), "add --write-budget, or leave out the policy") from error


def _replay(
    trace: RequestTrace,
    name: str,
    size: CacheSize,
    question: Question,
    advance: Callable[[int], None],
) -> Replayed:
    done = 0

    def refreshed(now: float) -> None:
        nonlocal done
        before = int(np.searchsorted(trace.times_s, now))
        advance(before - done)
        done = before

    policy = _policy(name, question, len(trace.keys))
    # Without predictions the order of eviction is LRU.
    order = "fifo" if name == "fifo" else "next-use"
    found = replay(trace, policy, size, order, refreshed)  # type: ignore[arg-type]
    advance(len(trace.keys) - done)
    return found

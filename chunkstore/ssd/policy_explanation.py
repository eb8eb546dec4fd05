"""The explanation of what a cache policy thinks of one chunk, in a user's words."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import LRU

_REMEMBERED: Final = 1 << 15
"""The decisions that are kept: 10 MiB at most."""


@runtime_checkable
class HasPriorities(Protocol):
    """A policy that decides by priorities of buckets."""

    priorities: Mapping[Bucket, float]
    """Those of the last refresh."""
    admit_threshold: float


class LastDecision(NamedTuple):
    """The last decision about a chunk that was missed."""

    policy: str
    bucket: Bucket
    admitted: bool
    at: float
    """The time by the runner's clock."""
    priority: float | None
    """The bucket's priority at that time; None: it had none."""
    threshold: float | None
    """The admit threshold at that time; None: the policy has none."""


class LastDecisions:
    """The last decision about each chunk that was missed lately, by key. Not thread-safe."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, LastDecision] = OrderedDict()

    def of(self, key: int) -> LastDecision | None:
        """Return the last decision about a chunk; None if there was none lately."""
        return self._last.get(key)

    def add(self, key: int, decision: LastDecision) -> None:
        """Remember a decision."""
        self._last[key] = decision
        self._last.move_to_end(key)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ChunkExplanation:
    """What the acting policy of one process knows of a chunk."""

    policy: str
    bucket: str
    priority: float | None
    """How often each byte of the bucket will likely be read soon; None: not known."""
    threshold: float | None
    """The priority above which buckets are admitted; None: the policy has none."""
    next_use_s: float | None
    """Seconds until a job reads the chunk; None: no job is known to, or nothing is predicted."""
    is_predicted: bool
    """True if the policy predicts the next uses of chunks."""
    evicts_next_s: float | None
    """Seconds until what is evicted next is read.

    None: there is room, no job reads it, or nothing is predicted.
    """
    admitted: bool | None
    """The last decision about it; None: this process did not miss it lately."""
    decided_ago_s: float | None
    reason: str
    """The reason for the last decision, or why there is none."""


def priority_of(policy: HasPriorities | None, bucket: Bucket) -> tuple[float | None, float | None]:
    """Return a bucket's priority and the admit threshold, if the policy has them."""
    if policy is None:
        return None, None
    return policy.priorities.get(bucket), policy.admit_threshold


def explanation(
    policy: HasPriorities | None,
    name: str,
    bucket: Bucket,
    last: LastDecision | None,
    now: float,
    next_use: float | None,
    evicts_next: float | None,
) -> ChunkExplanation:
    """Return the explanation; all times are of the runner's clock."""
    priority, threshold = priority_of(policy, bucket)
    return ChunkExplanation(
        name,
        bucket,
        priority,
        threshold,
        _seconds_until(next_use, now),
        next_use is not None,
        _seconds_until(evicts_next, now),
        None if last is None else last.admitted,
        None if last is None else max(0.0, now - last.at),
        reason(last, next_use is not None),
    )


def _seconds_until(at: float | None, now: float) -> float | None:
    return None if at is None or math.isinf(at) else max(0.0, at - now)


def reason(last: LastDecision | None, predicts: bool) -> str:
    """Return why a chunk was admitted or refused."""
    if last is None:
        return "this process has not missed it lately, so nothing was decided"
    said = "admitted" if last.admitted else "refused"
    if last.policy == LRU:
        return f"{said} by --ssd-admission: there is no cache policy"
    if predicts:
        compared = "sooner" if last.admitted else "later"
        return f"{said}: it is used {compared} than what would be evicted for it"
    if last.threshold is None:
        return f"{said} by the policy {last.policy}"
    if last.priority is None:
        return f"{said}: its bucket has no priority; no job reads it, or it is new within 10 s"
    above = "above" if last.priority > last.threshold else "not above"
    compared = f"priority {_number(last.priority)} is {above} the threshold"
    found = f"{said}: {compared} {_number(last.threshold)}"
    if last.admitted == (last.priority > last.threshold):
        return found
    if last.admitted:
        return f"{found}, which admits a part of such buckets"
    return f"{found}, but the write budget is used up"


def _number(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == round(value, 2) else f"{value:.2f}"

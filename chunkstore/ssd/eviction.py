"""The pure rules that choose which regions are evicted."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from chunkstore.ssd.segment_index import FREE, Order, Region


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """The limits that a user sets for a dataset on a tier."""

    quota_bytes: int | None = None
    """The most bytes on the tier; None: no limit."""
    ttl_s: float | None = None
    """Seconds without a read or write after which a region is evicted, even if there is room."""
    pinned: bool = False
    """True if no region of the dataset is evicted automatically."""


LimitsOf = Callable[[bytes], DatasetLimits]
"""A function from a dataset's id to its limits."""
Ranking = Callable[[Region], tuple[float, ...]]
"""An order of eviction: the region with the least rank is evicted first."""


def next_region(
    regions: Sequence[Region],
    dataset: bytes,
    limits_of: LimitsOf,
    region_bytes: int,
    ranking: Ranking,
    now: float,
    busy: Container[int] = (),
) -> Region | None:
    """Return the region that a dataset may fill next.

    A dataset at its quota reuses one of its own regions. Otherwise the choice is a free region, an
    expired one, or the next by `ranking`. Return None if all others are pinned or busy, or if the
    quota has no room for one region.
    """
    limits = limits_of(dataset)
    own = [region for region in regions if region.state != FREE and region.dataset == dataset]
    available = [region for region in regions if region.number not in busy]
    if limits.quota_bytes is not None and (len(own) + 1) * region_bytes > limits.quota_bytes:
        own = [region for region in own if region.number not in busy]
        return min(own, key=ranking, default=None)
    free = [region for region in available if region.state == FREE]
    if free:
        return min(free, key=lambda region: region.number)
    evictable = [region for region in available if not limits_of(region.dataset).pinned]
    over = [region for region in evictable if _is_expired(region, limits_of, now)]
    return min(over or evictable, key=ranking, default=None)


def above_quota(
    regions: Sequence[Region], limits_of: LimitsOf, region_bytes: int, ranking: Ranking
) -> list[Region]:
    """Return the regions that exceed a quota that was lowered, the next to evict first."""
    cached: dict[bytes, list[Region]] = {}
    for region in regions:
        if region.state != FREE:
            cached.setdefault(region.dataset, []).append(region)
    found = []
    for dataset, own in cached.items():
        quota_bytes = limits_of(dataset).quota_bytes
        if quota_bytes is not None:
            surplus = len(own) - quota_bytes // region_bytes
            found += sorted(own, key=ranking)[: max(0, surplus)]
    return found


def expired(regions: Sequence[Region], limits_of: LimitsOf, now: float) -> list[Region]:
    """Return the regions unused for as long as their dataset's TTL, without pinned datasets."""
    return [
        region
        for region in regions
        if region.state != FREE
        and _is_expired(region, limits_of, now)
        and not limits_of(region.dataset).pinned
    ]


def ranking_by(order: Order) -> Ranking:
    """Return the order of eviction of that name."""
    if order == "lru":
        return lambda region: (region.last_used, region.born)
    return lambda region: (0.0, region.born)


def _is_expired(region: Region, limits_of: LimitsOf, now: float) -> bool:
    ttl_s = limits_of(region.dataset).ttl_s
    return ttl_s is not None and now - region.last_used > ttl_s

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
    allocated_bytes: int | None = None
    """The bytes that an allocator gives the dataset; None: it has none.

    Chunks that are cached within them stay, and no others are cached (uniform caching).
    """

    def regions(self, region_bytes: int) -> int | None:
        """Return the regions that an allocator gives; None without one, or for a pinned dataset.

        A user's own quota counts if it is smaller.
        """
        if self.allocated_bytes is None or self.pinned:
            return None
        own_bytes = self.allocated_bytes if self.quota_bytes is None else self.quota_bytes
        return min(self.allocated_bytes, own_bytes) // region_bytes


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

    A dataset at its quota reuses one of its own regions. Otherwise the choice is a free region, one
    above an allocated quota, an expired one, or the next by `ranking` of the datasets without such
    a quota. Return None if all others are pinned, busy or within their quotas, if the dataset is at
    its allocated quota, or if its own has no room for one region.
    """
    limits = limits_of(dataset)
    own = [region for region in regions if region.state != FREE and region.dataset == dataset]
    allocated = limits.regions(region_bytes)
    if allocated is not None and len(own) >= allocated:
        return None
    available = [region for region in regions if region.number not in busy]
    quota_bytes = limits.quota_bytes if allocated is None else None
    if quota_bytes is not None and (len(own) + 1) * region_bytes > quota_bytes:
        own = [region for region in own if region.number not in busy]
        return min(own, key=ranking, default=None)
    free = [region for region in available if region.state == FREE]
    if free:
        return min(free, key=lambda region: region.number)
    surplus = above_quota(regions, limits_of, region_bytes, ranking)
    unneeded = next((region for region in surplus if region.number not in busy), None)
    if unneeded is not None:
        return unneeded
    evictable = [
        region
        for region in available
        if not limits_of(region.dataset).pinned
        and limits_of(region.dataset).regions(region_bytes) is None
    ]
    over = [region for region in evictable if _is_expired(region, limits_of, now)]
    return min(over or evictable, key=ranking, default=None)


def above_quota(
    regions: Sequence[Region], limits_of: LimitsOf, region_bytes: int, ranking: Ranking
) -> list[Region]:
    """Return the regions that exceed a quota that was lowered, the next to evict first.

    Those above an allocated quota come at random, so what stays is a fair sample of the dataset.
    """
    cached: dict[bytes, list[Region]] = {}
    for region in regions:
        if region.state != FREE:
            cached.setdefault(region.dataset, []).append(region)
    found = []
    for dataset, own in cached.items():
        limits = limits_of(dataset)
        order: Ranking = _at_random
        allowed = limits.regions(region_bytes)
        if allowed is None and limits.quota_bytes is not None:
            allowed, order = limits.quota_bytes // region_bytes, ranking
        if allowed is not None:
            found += sorted(own, key=order)[: max(0, len(own) - allowed)]
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


def _at_random(region: Region) -> tuple[float, ...]:
    return (region.generation,)


def _is_expired(region: Region, limits_of: LimitsOf, now: float) -> bool:
    ttl_s = limits_of(region.dataset).ttl_s
    return ttl_s is not None and now - region.last_used > ttl_s

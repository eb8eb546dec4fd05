"""Which regions are evicted first, and which chunks share one, by predicted next uses.

A region is evicted as a whole. Its rank is a mean of the next uses of its chunks in which each
counts by 1/sqrt(t), if it is used in `t` seconds. In a harmonic mean (1/t) one chunk that is due
would keep a region of chunks that are not needed; in an arithmetic mean a distant chunk would evict
those that are due. Chunks that no job needs add nothing, and dilute the region.

Chunks whose next uses are close together share a region, so that they are needed, and no longer
needed, at the same time. So time is cut into slots, and each slot has an open region of its own.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.policy import REFRESH_S

SOON: Final = 0
"""The class of chunks whose next use is not predicted at all."""
NOT_NEEDED: Final = -1
"""The class of chunks that no job is known to need."""
_MOST_SLOTS: Final = 16
_REGIONS_A_SLOT: Final = 16
"""Open regions are half empty on average: at this share they cost 3 % of the tier."""


def region_ranks(
    next_uses: npt.NDArray[np.float64], regions: npt.NDArray[np.int64], count: int, now: float
) -> npt.NDArray[np.float64]:
    """Return the rank of each region from 0 to `count` - 1: the greatest is evicted first.

    `next_uses` has one time for each cached chunk, and `regions` the number of its region. A rank
    is a time on the same scale; inf: no chunk of the region is needed. A use that is due, or
    overdue, counts as one in `REFRESH_S`, since ranks are not computed more often.
    """
    worth = np.maximum(next_uses - now, REFRESH_S) ** -0.5
    sums = np.bincount(regions, weights=worth, minlength=count)
    chunks = np.bincount(regions, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums > 0, now + (chunks / sums) ** 2, np.inf)


def fill_class(next_use: float, now: float, evicts_next: float | None, regions: int) -> int:
    """Return which open region of its dataset a new chunk is written to.

    `evicts_next` is the rank of the region that is evicted next; None: the cache has room.
    `regions` is how many regions the tier has: a small one has fewer of them open. Slots are
    absolute times, whose width is a power of two, so they stay the same from call to call.
    """
    if next_use == math.inf:
        return NOT_NEEDED
    span = next_use - now
    if evicts_next is not None and evicts_next < math.inf:
        span = evicts_next - now
    slots = max(1, min(_MOST_SLOTS, regions // _REGIONS_A_SLOT))
    width = 2.0 ** math.ceil(math.log2(max(span, REFRESH_S) / slots))
    return int(next_use // width) % slots

"""Which regions are evicted first, and which chunks share one, by predicted next uses.

A region is evicted as a whole. What it is worth is the sum of its chunks' worth, and a chunk that
is used in `t` seconds is worth 1/t: if its room were kept for it alone, it would serve one use in t
seconds. So the rank of a region is the harmonic mean of the next uses of its chunks. Chunks that no
job needs add nothing to the worth, and dilute it.

Chunks with distant next uses are written into other regions than those that are used soon.
Otherwise each region would keep some chunk that is used soon, and all would have the same rank.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.policy import REFRESH_S

SOON: Final = 0
LATE: Final = 1
_LATE_SHARE: Final = 0.5


def region_ranks(
    next_uses: npt.NDArray[np.float64], regions: npt.NDArray[np.int64], count: int, now: float
) -> npt.NDArray[np.float64]:
    """Return the rank of each region from 0 to `count` - 1: the greatest is evicted first.

    `next_uses` has one time for each cached chunk, and `regions` the number of its region. A rank
    is a time on the same scale; inf: no chunk of the region is needed. A use that is due, or
    overdue, counts as one in `REFRESH_S`, since ranks are not computed more often.
    """
    worth = 1 / np.maximum(next_uses - now, REFRESH_S)
    sums = np.bincount(regions, weights=worth, minlength=count)
    chunks = np.bincount(regions, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums > 0, now + chunks / sums, np.inf)


def fill_class(next_use: float, now: float, evicts_next: float | None) -> int:
    """Return which open region of its dataset a new chunk is written to: `SOON` or `LATE`.

    `evicts_next` is the rank of the region that is evicted next; None: the cache has room.
    """
    if evicts_next is None or evicts_next == np.inf:
        return LATE if next_use == np.inf else SOON
    return LATE if next_use - now > _LATE_SHARE * (evicts_next - now) else SOON

"""The rule by which a client decides whether its reads go to the cache at all (§5.3).

Tectonic-Shift's clients leave out tables whose IO demand the disks can serve that are needed to
store them, and what has not been onboarded. Such reads would likely be refused by the cache's
admission; so the cache is spared the requests. The answer is `ReaderTags.may_keep`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

TIB = 1 << 40


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The datasets whose reads may be kept in a cache. The default is all of them."""

    included: tuple[str, ...] = ("*",)
    """Patterns of datasets' names, as in a shell; a dataset that matches none is not eligible."""
    excluded: tuple[str, ...] = ()
    """Patterns of datasets that are not eligible in any case."""
    store_bytes_per_s_per_tib: float = 0.0
    """The rate at which the store serves each TiB that it stores; 0: not known."""

    def __post_init__(self) -> None:
        rate = self.store_bytes_per_s_per_tib
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"a store of {rate} bytes/s for each TiB; it must not be < 0")

    def allows(
        self, dataset: str, stored_bytes: int | None = None, demand_bytes_per_s: float | None = None
    ) -> bool:
        """Return whether the reads of a dataset may be kept.

        `demand_bytes_per_s` is what all its readers read together. What is not known (None) counts
        for the dataset.
        """
        if not _matches(dataset, self.included) or _matches(dataset, self.excluded):
            return False
        if stored_bytes is None or demand_bytes_per_s is None:
            return True
        served = self.store_bytes_per_s_per_tib * stored_bytes / TIB
        return served == 0 or not demand_bytes_per_s <= served  # NaN counts as not known


def _matches(dataset: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(dataset, pattern) for pattern in patterns)

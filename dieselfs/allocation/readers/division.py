"""The division of a job's remote IO among its readers, by need.

Each reader computes it from the leases of all, so all compute the same. SiloD divides equally (§6);
a node that reads more, or has less of the dataset cached, would then hold up the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.policies.fair_share import fair_shares

KNOWN_AFTER_S: Final = 3.0
"""The age from which a reader's use says what it needs."""
_BOUND: Final = 0.1
"""The share of its time for which a reader has waited, from which it needs more."""
_GROWTH: Final = 1.1
"""The factor by which a reader may need more than it used, so that it can grow."""
_LEAST_BYTES_PER_S: Final = 64 << 10


def need_of(lease: ReaderLease) -> float:
    """Return the bytes a second that a reader needs; infinite if it waits, or nothing is known."""
    if lease.age_s < KNOWN_AFTER_S or lease.bound > _BOUND:
        return math.inf
    return max(_LEAST_BYTES_PER_S, _GROWTH * lease.used_bytes_per_s)


def divided(readers: Sequence[ReaderLease], total: float) -> Mapping[str, float]:
    """Return what each reader gets of `total` bytes a second, by its id: max-min over the needs.

    The rest, which nobody needs, is divided equally, so the sum is `total`.
    """
    shares = fair_shares([need_of(lease) for lease in readers], total)
    rest = max(0.0, total - math.fsum(shares)) / max(1, len(readers))
    return {lease.reader: share + rest for lease, share in zip(readers, shares, strict=True)}

"""The division of a job's remote IO among its readers, by need.

Each reader computes it from the leases of all, so all compute the same. SiloD divides equally (§6);
a node that reads more, or has less of the dataset cached, would then hold up the others.

The needs are not independent. The nodes of a training go in step: if the one that reads most gets
more, all others read more too, and in the same proportion. So shares are in proportion to what was
used, with a little more for a reader that does not wait. What is left over lets all grow alike, and
two or three beats find the shares with which nobody holds up the others. Readers that wait, each
for itself, come to have equally much: then the division is max-min.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dieselfs.allocation.directory.reader_lease import ReaderLease

KNOWN_AFTER_S: Final = 3.0
"""The age from which a reader's use says what it needs."""
_WAITS: Final = 0.5
"""The share of its time for which a reader has waited, from which it is held up by its budget.

In step, a reader with enough waits for the slowest one instead.
"""
_STARVES: Final = 0.3
"""The same, for a reader that uses less than a quarter of an equal share: it has just begun."""
_GROWTH: Final = 1.05
"""The factor by which a reader that does not wait may need more than it used."""
_TOWARDS_EQUAL: Final = 0.1
"""The part of the way to their mean that the needs of those who wait go in a beat.

Readers in step that have just enough may wait too, and lose a part of what goes this way.
"""
_USED: Final = 0.9
"""The part of its share that a reader uses which is held up by nothing but its budget."""
_LEAST_BYTES_PER_S: Final = 64 << 10


def divided(readers: Sequence[ReaderLease], total: float) -> Mapping[str, float]:
    """Return what each reader gets of `total` bytes a second, by its id; the sum is `total`.

    Readers of which nothing is known, and those that have just begun to read, get equal shares. The
    others share the rest by their needs.
    """
    equal = total / max(1, len(readers))
    known = [lease for lease in readers if not _is_new(lease, equal)]
    needs = _needs(known)
    rest = total - equal * (len(readers) - len(known))
    scale = rest / (math.fsum(needs) or 1.0)
    shares = {lease.reader: need * scale for lease, need in zip(known, needs, strict=True)}
    return dict.fromkeys((lease.reader for lease in readers), equal) | shares


def _is_new(lease: ReaderLease, equal: float) -> bool:
    starves = lease.bound > _STARVES and lease.used_bytes_per_s < equal / 4
    return lease.age_s < KNOWN_AFTER_S or starves


def _is_held_up(lease: ReaderLease) -> bool:
    return lease.bound > _WAITS and lease.used_bytes_per_s >= _USED * lease.allowed_bytes_per_s


def _needs(readers: Sequence[ReaderLease]) -> list[float]:
    """Return what each reader needs, in proportion to each other."""
    waiting = [lease.used_bytes_per_s for lease in readers if _is_held_up(lease)]
    mean = math.fsum(waiting) / max(1, len(waiting))
    return [max(_LEAST_BYTES_PER_S, _need(lease, mean)) for lease in readers]


def _need(lease: ReaderLease, mean_of_waiting: float) -> float:
    used = lease.used_bytes_per_s
    if _is_held_up(lease):
        return used + _TOWARDS_EQUAL * (mean_of_waiting - used)
    return _GROWTH * used

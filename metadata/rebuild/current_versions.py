"""The current entry of each name, among all entries of a part, and the maps of them.

Several maps are computed at a time, since numpy costs 1 µs a call whatever the size; the rest in
Python is some 1.5 µs a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GroupedFields:
    """Fields of several maps, one map after the other; the columns have equal length."""

    maps: npt.NDArray[np.int64]
    """The map that each field belongs to, ascending."""
    names: Sequence[bytes]
    keys: Sequence[bytes]
    """Map key and field together."""
    chosen: npt.NDArray[np.intp]
    """The entry that each field is."""

    def extents(self, count: int) -> list[int]:
        """Return where the fields of each of the first `count` maps begin and the last ones end."""
        found: list[int] = np.searchsorted(self.maps, np.arange(count + 1)).tolist()
        return found


def current(
    map_keys: Sequence[bytes],
    maps: npt.NDArray[np.int64],
    names: Sequence[bytes],
    versions: npt.NDArray[np.uint64],
) -> GroupedFields:
    """Return the last entry with the greatest version, for each name of each map.

    `maps` gives the number among `map_keys` that each entry belongs to.
    """
    order = np.lexsort((versions, maps))
    numbers = order.tolist()
    grouped = [names[number] for number in numbers]
    keys = [map_keys[at] + name for at, name in zip(maps[order].tolist(), grouped, strict=True)]
    # the later value stays, at the first one's position
    best = dict(zip(keys, numbers, strict=True))
    if len(best) == len(keys):
        return GroupedFields(maps[order], grouped, keys, order)
    chosen = np.fromiter(best.values(), np.intp, len(best))
    return GroupedFields(
        maps[chosen], [names[number] for number in chosen.tolist()], list(best), chosen
    )

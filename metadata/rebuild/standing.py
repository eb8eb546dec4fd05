"""Of all entries of a part: which stands for each name, and the maps that this makes.

Several maps at a time, since numpy costs 1 µs a call whatever the size; what is left of Python is some 1.5 µs a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from metadata.records import ENTRY


@dataclass(frozen=True, slots=True)
class GroupedFields:
    """Fields of several maps, one map after the other; columns of equal length."""

    maps: npt.NDArray[np.int64]
    """Which map each belongs to, ascending."""
    names: Sequence[bytes]
    keys: Sequence[bytes]
    """Map key and field together."""
    chosen: npt.NDArray[np.intp]
    """Which of the entries each is."""

    def extents(self, count: int) -> list[int]:
        """Where the fields of each of the maps 0 … `count` - 1 begin, and where the last end."""
        found: list[int] = np.searchsorted(self.maps, np.arange(count + 1)).tolist()
        return found


def current(
    map_keys: Sequence[bytes],
    maps: npt.NDArray[np.int64],
    names: Sequence[bytes],
    versions: npt.NDArray[np.uint64],
) -> GroupedFields:
    """Of the entries of each name of each map the last one with the greatest version. `maps` says which of `map_keys` an entry
    belongs to."""
    order = np.lexsort((versions, maps))
    numbers = order.tolist()
    grouped = [names[number] for number in numbers]
    keys = [map_keys[at] + name for at, name in zip(maps[order].tolist(), grouped, strict=True)]
    best = dict(zip(keys, numbers, strict=True))  # what comes later stays, where the first was
    if len(best) == len(keys):
        return GroupedFields(maps[order], grouped, keys, order)
    chosen = np.fromiter(best.values(), np.intp, len(best))
    return GroupedFields(
        maps[chosen], [names[number] for number in chosen.tolist()], list(best), chosen
    )


def encoded(keys: Sequence[bytes], rows: npt.NDArray[np.void]) -> list[bytes]:
    """As `metadata.records.encode_entries`, for fields of several maps."""
    assert rows.dtype == ENTRY
    blob, size, digest = rows.tobytes(), ENTRY.itemsize, xxhash.xxh3_64_digest
    bodies = [blob[at : at + size] for at in range(0, len(blob), size)]
    return [body + digest(key + body) for key, body in zip(keys, bodies, strict=True)]

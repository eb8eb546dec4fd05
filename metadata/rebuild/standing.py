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
class SortedFields:
    """Fields of several maps in the order of map keys and fields; columns of equal length."""

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


def standing(
    map_keys: Sequence[bytes],
    maps: npt.NDArray[np.int64],
    names: Sequence[bytes],
    versions: npt.NDArray[np.uint64],
) -> SortedFields:
    """Of the entries of each name of each map the last one with the greatest version. `map_keys` ascend; `maps` says which of them
    an entry belongs to."""
    numbers: Sequence[int] = range(len(names))
    every = [map_keys[at] + name for at, name in zip(maps.tolist(), names, strict=True)]
    keys = every
    if (versions[1:] < versions[:-1]).any():
        numbers = np.argsort(versions, kind="stable").tolist()
        keys = [every[number] for number in numbers]
    best = dict(zip(keys, numbers, strict=True))  # what comes later stays
    ordered = sorted(best)
    chosen = np.fromiter(map(best.__getitem__, ordered), np.intp, len(ordered))
    return SortedFields(
        maps[chosen], [names[number] for number in chosen.tolist()], ordered, chosen
    )


def encoded(keys: Sequence[bytes], rows: npt.NDArray[np.void]) -> list[bytes]:
    """As `metadata.records.encode_entries`, for fields of several maps."""
    assert rows.dtype == ENTRY
    blob, size, digest = rows.tobytes(), ENTRY.itemsize, xxhash.xxh3_64_digest
    bodies = [blob[at : at + size] for at in range(0, len(blob), size)]
    return [body + digest(key + body) for key, body in zip(keys, bodies, strict=True)]

"""The way from a path to a number: an open-addressing hash table in one array, built and searched in bulk.

A path hashes to a slot by multiply and shift; a taken slot passes it on to the next one (linear probing, two slots a path, so that
a path is found after 1.5 looks and missed after 2.5). The table does not wrap: it is padded at its end and closed by an
empty slot, so probing is a plain walk to the right. `reach` bounds that walk, also in a damaged file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SLOTS_PER_PATH = 2

Candidates = Callable[[npt.NDArray[np.intp], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""(rows of the query, candidate numbers) -> which candidates have the path that was asked for."""


def slot_count(paths: int) -> int:
    """How many slots paths hash to; the padding behind them comes on top."""
    return max(1, SLOTS_PER_PATH * paths)


def home_slots(hashes: npt.NDArray[np.uint64], slots: int) -> npt.NDArray[np.int64]:
    """Where a path is looked for first. Only the upper half of the hash, so that the product fits 64 bits."""
    return (((hashes >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32)).astype(np.int64)


def build(
    hashes: npt.NDArray[np.uint64], numbers: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.uint32], int]:
    """The table of number + 1, and its reach. A function of the set of (hash, number), whatever their order."""
    slots = slot_count(len(hashes))
    # Sorted as one number, (home, number): 32 and 31 bits.
    key = np.sort((home_slots(hashes, slots) << 31) | numbers.astype(np.int64))
    home, number = key >> 31, key & ((1 << 31) - 1)
    # A path's place is one after its predecessor's, or its home if that is further: a running maximum.
    rank = np.arange(len(home))
    place = np.maximum.accumulate(home - rank) + rank
    reach = int((place - home).max(initial=0)) + 1
    end = max(slots, int(place[-1]) + 1 if len(place) else 0)
    table = np.zeros(end + 1, np.uint32)
    table[place] = number + 1
    return table, reach


def search(
    table: npt.NDArray[np.uint32],
    slots: int,
    reach: int,
    hashes: npt.NDArray[np.uint64],
    matches: Candidates,
) -> npt.NDArray[np.int64]:
    """The number of each path, -1 where absent. Linear probing for all at once: the unfinished go on one slot to the right."""
    found = np.full(len(hashes), -1, np.int64)
    rows: npt.NDArray[np.intp] = np.arange(len(hashes))
    place = home_slots(hashes, slots)
    for _ in range(reach):
        number = table[place].astype(np.int64) - 1
        taken = number >= 0
        if not taken.all():
            rows, place, number = rows[taken], place[taken], number[taken]
        if not len(rows):
            break
        hit = matches(rows, number)
        found[rows[hit]] = number[hit]
        miss = ~hit
        rows, place = rows[miss], place[miss] + 1
    return found

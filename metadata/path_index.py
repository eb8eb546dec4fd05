"""The hash table from paths to numbers: open addressing in one array, built and searched in bulk.

A path hashes to a slot by multiply and shift. If the slot is taken, the next one is tried (linear
probing). There are two slots a path, so a path is found after 1.5 looks and missed after 2.5. The
table does not wrap: it is padded at its end and closed by an empty slot, so probing is a plain walk
to the right. `reach` bounds that walk, also in a damaged file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SLOTS_PER_PATH = 2

Candidates = Callable[[npt.NDArray[np.intp], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""A function (rows of the query, candidate numbers) -> which candidates have the wanted path."""


def slot_count(paths: int) -> int:
    """Return the number of slots that paths hash to, without the padding behind them."""
    return max(1, SLOTS_PER_PATH * paths)


def home_slots(hashes: npt.NDArray[np.uint64], slots: int) -> npt.NDArray[np.int64]:
    """Return the first slot to look at for each path.

    Only the upper half of the hash counts, so that the product fits 64 bits.
    """
    return (((hashes >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32)).astype(np.int64)


def build(
    hashes: npt.NDArray[np.uint64], numbers: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.uint32], int]:
    """Return the table of number + 1, and its reach.

    The table is a function of the set of (hash, number), whatever their order.
    """
    slots = slot_count(len(hashes))
    # (home, number) is sorted as one number of 32 and 31 bits.
    key = np.sort((home_slots(hashes, slots) << 31) | numbers.astype(np.int64))
    home, number = key >> 31, key & ((1 << 31) - 1)
    # A path's place is one after its predecessor's, or its home if that is further: a running
    # maximum.
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
    """Return the number of each path, -1 if absent.

    All paths are probed at once: the unfinished ones move one slot to the right.
    """
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

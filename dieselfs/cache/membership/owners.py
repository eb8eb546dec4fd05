"""The test of whether this node owns a block, which its master applies when it chooses evictions.

A block belongs to this node's share in the present view, or to another node's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import PRINTED_LENGTH, ChunkId
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.ports.members import MemberId

_KEPT = 1 << 20
"""The limit of remembered answers, of some 100 bytes each."""


class Shares:
    """The share of this node. Thread-safe.

    Without a placement this node owns nothing, as if it were alone: all blocks are equal then.
    """

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self._me: MemberId = ""
        self._owned: dict[str, bool] = {}
        """Answers by the name of a block; replaced with the placement."""

    def place(self, placement: Placement | None, me: MemberId = "") -> None:
        """Use this placement, that of the present view, from now on."""
        self._owned = {}
        self._me, self.placement = me, placement
        self._owned = {}  # drops answers that another thread computed meanwhile

    def owns(self, name: str) -> bool:
        """Return whether this node owns the block of this name, or the chunk that it is a part of.

        Takes 0.1 µs if it was asked before, else 60 µs.
        """
        owned, placement = self._owned, self.placement
        found = owned.get(name)
        if found is None:
            owner = None if placement is None else placement.owner(_chunk(name))
            found = owner is not None and owner.id == self._me
            if len(owned) < _KEPT:
                owned[name] = found
        return found

    def owned_of(self, ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
        """Return the positions of the chunks that this node owns.

        The chunks' ids are the rows of `ids`, of shape (n, 16).
        """
        placement = self.placement
        if placement is None:
            return np.empty(0, np.intp)
        places = [at for at, member in enumerate(placement.members) if member.id == self._me]
        return np.flatnonzero(np.isin(placement.owners(ids), places))

    def prepare(self, names: Iterable[str]) -> None:
        """Compute the answers for many names at once, so that `owns` is quick.

        Takes 0.03 µs for each name and member, instead of 60 µs a name.
        """
        owned, names = self._owned, list(names)
        if names:
            ids = np.frombuffer(b"".join(_chunk(name).value for name in names), np.uint8)
            mine = set(self.owned_of(ids.reshape(-1, 16)).tolist())
            owned.update((name, at in mine) for at, name in enumerate(names))


def _chunk(name: str) -> ChunkId:
    return ChunkId.parse(name[:PRINTED_LENGTH])

"""Whose a piece is, as its node's master asks while it decides what leaves: of this node's share in the present view, or another's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import PRINTED_LENGTH, ChunkId
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.placement import Placement

_KEPT = 1 << 20
"""Answers that are remembered: some 100 bytes each."""


class Shares:
    """Thread-safe. Without a placement this node owns nothing, as if it were alone: all pieces are equal then."""

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self._me: MemberId = ""
        self._owned: dict[str, bool] = {}
        """By the name of a piece; replaced with the placement."""

    def place(self, placement: Placement | None, me: MemberId = "") -> None:
        """The present view's from now on."""
        self._owned = {}
        self._me, self.placement = me, placement
        self._owned = {}  # what was asked meanwhile

    def owns(self, name: str) -> bool:
        """Whether the piece of this name, or the chunk that it is a part of, is of this node's share. 0.1 µs if it was asked before, else 60."""
        owned, placement = self._owned, self.placement
        found = owned.get(name)
        if found is None:
            owner = None if placement is None else placement.owner(_chunk(name))
            found = owner is not None and owner.id == self._me
            if len(owned) < _KEPT:
                owned[name] = found
        return found

    def owned_of(self, ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
        """Which of the chunks, whose ids are the rows of (n, 16), are of this node's share."""
        placement = self.placement
        if placement is None:
            return np.empty(0, np.intp)
        places = [at for at, member in enumerate(placement.members) if member.id == self._me]
        return np.flatnonzero(np.isin(placement.owners(ids), places))

    def prepare(self, names: Iterable[str]) -> None:
        """Ask of many at once, so that `owns` is quick: 0.03 µs each and member, instead of 60."""
        owned, names = self._owned, list(names)
        if names:
            ids = np.frombuffer(b"".join(_chunk(name).value for name in names), np.uint8)
            mine = set(self.owned_of(ids.reshape(-1, 16)).tolist())
            owned.update((name, at in mine) for at, name in enumerate(names))


def _chunk(name: str) -> ChunkId:
    return ChunkId.parse(name[:PRINTED_LENGTH])

"""The chunks whose objects were found damaged a moment ago, and what of them can still be read.

A damaged chunk is read twice, the second time past caches. Without a memory of that, each of its
files would ask the store twice again: a chunk of 1,000 files 2,000 times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt

DAMAGED_S: Final = 1.0
"""The seconds for which the lost parts of a damaged chunk are not read again."""
_KEPT_S: Final = 60.0
"""The seconds for which damage is remembered that no reader meets again."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of one chunk's object, as two reads of it have shown."""

    message: str
    has_head: bool
    """The head is sound. Without it no block of a large file can be verified."""
    intact: frozenset[int] | None
    """The payload offsets of the intact files of up to 256 KiB; None if these are not known."""

    def loses(self, offset: int, length: int) -> bool:
        """Return whether no byte of the file at this place of the payload can be read."""
        if length > BLOCK_BYTES:
            return not self.has_head
        return length > 0 and self.intact is not None and offset not in self.intact


@dataclass(frozen=True, slots=True)
class _Kept:
    damage: Damage
    until: float
    """When one read tries again."""


class KnownDamage:
    """The damage of chunks. Thread-safe without a lock, which a fork could leave locked.

    Lost parts fail at once for `DAMAGED_S`. Then one read tries again, while others still fail. If
    it fails too, they go on failing for as long; if it succeeds, nothing is known any more. If two
    threads change it at the same moment, one change may be lost: that costs some reads.
    """

    def __init__(self) -> None:
        self._kept: dict[ChunkId, _Kept] = {}

    def check(self, chunk: ChunkId, is_lost: Callable[[Damage], bool]) -> bool:
        """Raise `Corrupt` if the chunk's damage is known and takes the wanted part.

        Return True if the part was lost and the caller tries it again: it calls `repaired` if that
        succeeds.
        """
        kept = self._kept.get(chunk)
        if kept is None or not is_lost(kept.damage):
            return False
        if time.monotonic() < kept.until:
            raise Corrupt(kept.damage.message)
        self.note(chunk, kept.damage)
        return True

    def note(self, chunk: ChunkId, damage: Damage) -> None:
        """Remember what two reads of the chunk have shown."""
        now = time.monotonic()
        recent = {key: kept for key, kept in self._kept.items() if kept.until + _KEPT_S > now}
        self._kept = recent | {chunk: _Kept(damage, now + DAMAGED_S)}

    def repaired(self, chunk: ChunkId) -> None:
        """Forget the damage of a chunk of which a lost part could be read."""
        self._kept = {key: kept for key, kept in self._kept.items() if key != chunk}

"""The losses that a key-value store reports: several servers may lose acknowledged writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from metadata.kv.key_value_store import KeyValueStore


@dataclass(frozen=True, slots=True)
class LostWrites:
    """The losses seen since the store was opened in this process."""

    losses: int
    """The number of times that a loss of acknowledged writes was seen. It only grows."""
    losses_without_end: int
    """The losses of unknown extent among them: perhaps everything was lost."""
    is_confirmed: bool
    """True if all that was acknowledged survives the next fail-over too, as the servers report."""


NOTHING_LOST: Final = LostWrites(0, 0, True)


@runtime_checkable
class MayLoseWrites(Protocol):
    """A `KeyValueStore` whose changing calls raise `IndexForgot` when they see a loss.

    A put raises it before the phases that follow.
    """

    def lost_writes(self) -> LostWrites:
        """Return the losses seen so far."""
        ...


def lost_writes_of(index: KeyValueStore) -> LostWrites:
    """Return the losses that the store reports; stores that report none lose nothing."""
    return index.lost_writes() if isinstance(index, MayLoseWrites) else NOTHING_LOST

"""What a key-value store knows of its own losses: a database of several servers may forget what it acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from metadata.kv.key_value_store import KeyValueStore


@dataclass(frozen=True, slots=True)
class Memory:
    """Since the store was opened in this process."""

    losses: int
    """How often it was seen that something acknowledged was forgotten. Only grows."""
    losses_without_end: int
    """Those of which nobody knows how much was forgotten: perhaps all."""
    is_confirmed: bool
    """Everything acknowledged survives the next fail-over as well, as far as the servers say."""


NOTHING_FORGOTTEN: Final = Memory(0, 0, True)


@runtime_checkable
class MayLoseWrites(Protocol):
    """A `KeyValueStore` whose changing calls raise `IndexForgot` when they see a loss: of a put, before the phases that follow."""

    def memory(self) -> Memory: ...


def memory_of(index: KeyValueStore) -> Memory:
    """What the store says of itself; others forget nothing."""
    return index.memory() if isinstance(index, MayLoseWrites) else NOTHING_FORGOTTEN

"""The records that a key-value store may have thrown away by itself to make room for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from metadata.kv.key_value_store import KeyValueStore


@dataclass(frozen=True, slots=True)
class Evictions:
    """What the servers of a store say of evictions."""

    policy: str | None
    """The policy by which a server may evict records; None if none does."""
    evicted: int
    """The keys evicted since the servers started, if records may have been among them."""

    @property
    def records_may_be_missing(self) -> bool:
        """True if a listing of a part, which has no total, may lack records without a trace."""
        return self.policy is not None or self.evicted > 0


NOTHING_EVICTED: Final = Evictions(None, 0)


@runtime_checkable
class MayEvict(Protocol):
    """A `KeyValueStore` whose servers may evict records. It refuses puts while they may."""

    def evictions(self, *, now: bool = False) -> Evictions:
        """Return what the servers said when the store was opened; with `now`, ask them again."""
        ...


def evictions_of(index: KeyValueStore, *, now: bool = False) -> Evictions:
    """Return what the store says of evictions; stores that say nothing evict nothing."""
    return index.evictions(now=now) if isinstance(index, MayEvict) else NOTHING_EVICTED

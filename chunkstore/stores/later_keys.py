"""The keys that come after one, for a check that a sequence of objects has no hole.

It is not part of `ObjectStore`: where a store cannot begin a listing at a key, all its objects
below the prefix are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from chunkstore.stores.object_store import ObjectStore


@runtime_checkable
class ListsLaterKeys(Protocol):
    """A store that knows how it lists the keys after one."""

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys directly below `prefix` that come after `after`, in no particular order.

        `prefix` ends with `/`, and no name below it has one. None if the store would have to list
        all that it has.
        """
        ...


def later_keys(store: ObjectStore, prefix: str, after: str) -> Sequence[str] | None:
    """Return the keys as `ListsLaterKeys` defines them."""
    if isinstance(store, ListsLaterKeys):
        return store.later_keys(prefix, after)
    return [info.key for info in store.list(prefix) if info.key > after]

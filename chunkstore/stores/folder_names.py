"""The names directly below a prefix, as folders are: `a` and `b` below `datasets/`.

It is not part of `ObjectStore`: where a store cannot list them at once, all its objects below the
prefix are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from chunkstore.stores.object_store import ObjectInfo, ObjectStore


@runtime_checkable
class ListsFolders(Protocol):
    """A store that lists the names below a prefix without listing the objects below these."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names, without objects directly below `prefix`, in no particular order.

        `prefix` ends with `/`. A name may be left whose objects have all been deleted.
        """
        ...


def folder_names(store: ObjectStore, prefix: str) -> list[str]:
    """Return the names below `prefix`, each once, sorted, as `ListsFolders` defines them."""
    if isinstance(store, ListsFolders):
        return sorted(store.folders(prefix))
    return sorted(folders_of(store.list(prefix), prefix))


def folders_of(listing: Iterable[ObjectInfo], prefix: str) -> set[str]:
    """Return the names that a listing of all objects below `prefix` shows."""
    parts = (info.key.removeprefix(prefix).partition("/") for info in listing)
    return {name for name, slash, _ in parts if slash}

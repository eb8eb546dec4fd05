"""What killed writers left in a store that writes objects to temporary files first. Not of the `ObjectStore` port: most stores have none."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from chunkstore.stores.object_store import ObjectInfo, ObjectStore


@runtime_checkable
class HasTemporaryFiles(Protocol):
    """A store that offers to clear them away."""

    def temporary_files(self, older_than_s: float) -> tuple[ObjectInfo, ...]:
        """Those that nobody has written to for so long; their names are no keys."""
        ...

    def remove_temporary_file(self, name: str) -> None:
        """Nothing happens when there is none."""
        ...


def with_temporary_files(store: ObjectStore) -> HasTemporaryFiles | None:
    """The store itself, or the one that it makes resilient, if that has temporary files."""
    inner = getattr(store, "store", store)
    return inner if isinstance(inner, HasTemporaryFiles) else None

"""An interface for the temporary files that killed writers left in a store.

It is not part of `ObjectStore`, because most stores have no temporary files.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from chunkstore.stores.object_store import ObjectInfo, ObjectStore


@runtime_checkable
class HasTemporaryFiles(Protocol):
    """A store that can list and remove temporary files."""

    def temporary_files(self, older_than_s: float) -> tuple[ObjectInfo, ...]:
        """Return the files without a write for `older_than_s`; their names are no keys."""
        ...

    def remove_temporary_file(self, name: str) -> None:
        """Remove a temporary file; do nothing if there is none."""
        ...


def with_temporary_files(store: ObjectStore) -> HasTemporaryFiles | None:
    """Return the store with temporary files: `store` itself or the one that it wraps.

    Return None if there is none.
    """
    inner = getattr(store, "store", store)
    return inner if isinstance(inner, HasTemporaryFiles) else None

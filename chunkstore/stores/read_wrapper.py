"""Bases for wrappers of an object store, which pass on the calls that they do not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from chunkstore.stores.folder_names import folder_names
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import (
    Buffer,
    ObjectInfo,
    ObjectStore,
    check_created,
    forget_copy,
)
from chunkstore.stores.read import Read


class StoreWrapper:
    """An `ObjectStore` that passes on every call to another one."""

    def __init__(self, store: ObjectStore) -> None:
        self._wrapped = store

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object in the wrapped store."""
        self._wrapped.create(key, parts)

    def get(self, key: str) -> Buffer:
        """Return a whole object of the wrapped store."""
        return self._wrapped.get(key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object of the wrapped store."""
        return self._wrapped.get_range(key, offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects of the wrapped store."""
        return self._wrapped.list(prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix of the wrapped store."""
        return folder_names(self._wrapped, prefix)

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one of the wrapped store."""
        return later_keys(self._wrapped, prefix, after)

    def delete(self, key: str) -> None:
        """Delete an object of the wrapped store."""
        self._wrapped.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object of the wrapped store."""
        return self._wrapped.stat(key)

    def forget(self, key: str) -> bool:
        """See `KeepsCopies`; the wrapped store may keep copies."""
        return forget_copy(self._wrapped, key)

    def check_created(self, sizes: Mapping[str, int]) -> None:
        """See `DefersChecks`; the wrapped store may defer checks."""
        check_created(self._wrapped, sizes)


class ReadWrapper(StoreWrapper):
    """A wrapper that changes reads; subclasses define `_read`."""

    def get(self, key: str) -> Buffer:
        """Return a whole object by `_read`."""
        return self._read(Read(key))

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object by `_read`."""
        return self._read(Read(key, offset, length))

    def _read(self, read: Read) -> Buffer:
        raise NotImplementedError

"""An object store over another that does something about its reads, and passes on what else there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from chunkstore.stores.read import Read


class ReadWrapper:
    """Implements `ObjectStore`, but for `_read`."""

    def __init__(self, store: ObjectStore) -> None:
        self._wrapped = store

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self._wrapped.create(key, parts)

    def get(self, key: str) -> Buffer:
        return self._read(Read(key))

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        return self._read(Read(key, offset, length))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._wrapped.list(prefix)

    def delete(self, key: str) -> None:
        self._wrapped.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        return self._wrapped.stat(key)

    def _read(self, read: Read) -> Buffer:
        raise NotImplementedError

"""The object store in a dictionary: the reference that the contract suite is written against."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from chunkstore.errors import AlreadyExists, NotFound
from chunkstore.stores.object_store import Buffer, ObjectInfo


class MemoryObjectStore:
    """Implements `ObjectStore`; lives as long as the process."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        data = b"".join(parts)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(key)
            self._objects[key] = data

    def get(self, key: str) -> bytes:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.get(key)[offset : offset + length]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._lock:
            found = [
                ObjectInfo(key, len(data))
                for key, data in self._objects.items()
                if key.startswith(prefix)
            ]
        return iter(found)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.get(key)))

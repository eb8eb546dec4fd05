"""An object store in a dictionary, the reference for the contract tests of stores."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from chunkstore.errors import AlreadyExists, NotFound
from chunkstore.stores.object_store import Buffer, ObjectInfo


class MemoryObjectStore:
    """An `ObjectStore` that lives as long as the process."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object."""
        data = b"".join(parts)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(key)
            self._objects[key] = data

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return a range of an object."""
        return self.get(key)[offset : offset + length]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects, as of the call."""
        with self._lock:
            found = [
                ObjectInfo(key, len(data))
                for key, data in self._objects.items()
                if key.startswith(prefix)
            ]
        return iter(found)

    def delete(self, key: str) -> None:
        """Delete an object."""
        with self._lock:
            self._objects.pop(key, None)

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object."""
        return ObjectInfo(key, len(self.get(key)))

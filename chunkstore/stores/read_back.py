"""A wrapper that reads every new object back, and compares it with what was sent.

Any store is asked for the size of a new object, where that costs little. This wrapper is for stores
that nobody trusts yet: it doubles what goes over the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import xxhash

from chunkstore.errors import NotFound, Untrusted
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read_wrapper import StoreWrapper

_READ_BYTES: Final = 8 << 20


class ReadBackStore(StoreWrapper):
    """A store whose `create` raises `Untrusted` unless the store gives back what it was given."""

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object and read it back. Memory: 8 MiB."""
        sent = _Hashed(parts)
        self._wrapped.create(key, iter(sent) if iter(parts) is parts else sent)
        if self._digest(key, sent.size_bytes) != sent.digest:
            raise Untrusted(
                f"the store acknowledged {key} ({sent.size_bytes:,} bytes), but returns other "
                "bytes; check the store, and proxies and caches in front of it"
            )

    def _digest(self, key: str, size_bytes: int) -> int | None:
        """Return the hash of an object, None if it is missing or of another size."""
        whole = xxhash.xxh3_64()
        at = 0
        try:
            while data := self._wrapped.get_range(key, at, _READ_BYTES):
                whole.update(data)
                at += len(data)
        except NotFound:
            return None
        return whole.intdigest() if at == size_bytes else None


class _Hashed:
    """Parts, and the hash and size of those that the last iteration gave."""

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._parts = parts
        self._whole = xxhash.xxh3_64()
        self.size_bytes = 0

    @property
    def digest(self) -> int:
        return self._whole.intdigest()

    def __iter__(self) -> Iterator[Buffer]:
        self._whole.reset()
        self.size_bytes = 0
        for part in self._parts:
            self._whole.update(part)
            self.size_bytes += len(part)
            yield part

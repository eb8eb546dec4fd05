"""One read of a store as a value: what the wrappers that count and repeat reads pass around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chunkstore.stores.object_store import Buffer, ObjectStore

ReadKind: TypeAlias = str | int
"""Reads of one kind move about equally many bytes, so that their latencies can be compared."""


@dataclass(frozen=True, slots=True)
class Read:
    key: str
    offset: int = 0
    length: int | None = None
    """None: the whole object."""

    def of(self, store: ObjectStore) -> Buffer:
        if self.length is None:
            return store.get(self.key)
        return store.get_range(self.key, self.offset, self.length)

    @property
    def kind(self) -> ReadKind:
        """Of a range, its length as a power of two. Of a whole object, whose size is not known, the key without its last component:
        the chunks of one dataset are of one size, and so are its commits."""
        if self.length is None:
            return self.key.rpartition("/")[0]
        return self.length.bit_length()

    def __str__(self) -> str:
        if self.length is None:
            return self.key
        return f"bytes {self.offset} to {self.offset + self.length} of {self.key}"

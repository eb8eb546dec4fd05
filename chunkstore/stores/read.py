"""One read of a store as a value, for the wrappers that count and repeat reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chunkstore.stores.object_store import Buffer, ObjectStore

ReadKind: TypeAlias = str | int
"""A key for reads of similar size, whose latencies can be compared."""


@dataclass(frozen=True, slots=True)
class Read:
    """A range of an object, or a whole object."""

    key: str
    offset: int = 0
    length: int | None = None
    """The bytes of the range; None: the whole object."""

    def of(self, store: ObjectStore) -> Buffer:
        """Return the bytes from a store."""
        if self.length is None:
            return store.get(self.key)
        return store.get_range(self.key, self.offset, self.length)

    @property
    def kind(self) -> ReadKind:
        """The kind of the read.

        The kind of a range is its length as a power of two. The size of a whole object is unknown;
        its kind is the key without the last component, because the chunks of one dataset are of one
        size, and so are its commits.
        """
        if self.length is None:
            return self.key.rpartition("/")[0]
        return self.length.bit_length()

    def __str__(self) -> str:
        if self.length is None:
            return self.key
        return f"bytes {self.offset} to {self.offset + self.length} of {self.key}"

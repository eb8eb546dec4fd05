"""The port to an object store: six blocking calls that local directories, S3 and RADOS all have.

Objects are only ever created, never changed: a create-only put is the one atomic step that every store offers (compare-and-swap is
not). Retry, hedging, limits, counting and faults are wrappers with this same port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    size_bytes: int


class ObjectReader(Protocol):
    """What reads chunks needs no more of a store than this, and may be given views of what lies elsewhere. Thread-safe; errors as of `ObjectStore`."""

    def get(self, key: str) -> Buffer:
        """The whole object; `NotFound`."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Bytes [offset, offset + length) as far as the object has them: shorter only at its end. `NotFound`."""
        ...


@runtime_checkable
class KeepsCopies(Protocol):
    """An `ObjectReader` that may answer with a copy of what the store has."""

    def forget(self, key: str) -> bool:
        """What was read of this object is damaged: the next read is of the store. False if it was so already."""
        ...


class ObjectStore(Protocol):
    """Thread-safe; every call blocks. A key is `/`-joined printable ASCII without empty, `.` or `..` components.

    Every method may raise `Unavailable` or `Denied`.
    """

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create the object `key` from the concatenation of `parts` (a retry may iterate them again), atomically and durably.

        When it returns, the object survives a crash of machine or store. Others see all of it or none of it. Raises
        `AlreadyExists` and changes nothing when the key is taken (of N concurrent creators exactly one wins), `StoreFull`
        when there is no room. An exception raised by `parts` passes through and nothing is created. After `Unavailable` the
        object may or may not exist: callers that retry compare content on `AlreadyExists`.
        """
        ...

    def get(self, key: str) -> Buffer:
        """The whole object, to be read only; `NotFound`."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Bytes [offset, offset + length) as far as the object has them: shorter only at its end. `NotFound`."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in no promised order. `prefix` is empty or ends with `/`.

        Objects created or deleted meanwhile may or may not appear; all others appear exactly once.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size of the object; `NotFound`."""
        ...

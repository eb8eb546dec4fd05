"""The interface of an object store: six blocking calls that directories, S3 and RADOS all offer.

Objects are only created and deleted, never changed: a create-only put is the one atomic step that
every store offers (compare-and-swap is not). Retry, hedging, limits, counting and faults are
wrappers with this same interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from chunkstore.errors import NotFound

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The facts that a store knows about an object without reading it."""

    key: str
    size_bytes: int


class ObjectReader(Protocol):
    """The part of a store that chunk readers need; it may return views of other memory.

    Thread-safe; it raises the errors of `ObjectStore`.
    """

    def get(self, key: str) -> Buffer:
        """Return the whole object; raise `NotFound` if there is none."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return bytes [offset, offset + length), fewer only at the object's end.

        Raise `NotFound` if there is no object.
        """
        ...


@runtime_checkable
class KeepsCopies(Protocol):
    """An `ObjectReader` that may answer with a copy of the store's object."""

    def forget(self, key: str) -> bool:
        """Drop the copy of a damaged object, so that the next read goes to the store.

        Return False if there was no copy.
        """
        ...


def forget_copy(store: object, key: str) -> bool:
    """Have a store drop its copy of an object, if it keeps copies; return whether it had one."""
    return isinstance(store, KeepsCopies) and store.forget(key)


@runtime_checkable
class DefersChecks(Protocol):
    """An `ObjectStore` whose `create` believes the server's answer for a chunk.

    So the size of a chunk is checked before the commit that names it: for many chunks at a time.
    """

    def check_created(self, sizes: Mapping[str, int]) -> None:
        """Raise `Untrusted` unless the store has these objects, all of one folder.

        `sizes` are the bytes of each object by its key.
        """
        ...


def check_created(store: object, sizes: Mapping[str, int]) -> None:
    """Have a store check objects of one folder, if its `create` has not: see `DefersChecks`."""
    if sizes and isinstance(store, DefersChecks):
        store.check_created(sizes)


class ObjectStore(Protocol):
    """An object store. Thread-safe; every call blocks.

    A key is `/`-joined printable ASCII without empty, `.` or `..` components. Every method may
    raise `Unavailable` or `Denied`.
    """

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create the object `key` from the concatenation of `parts`, atomically and durably.

        A retry may iterate `parts` again. When the call returns, the object survives a crash of
        machine or store; of a chunk, a store that `DefersChecks` says so only by `check_created`.
        Other processes see all of it or none of it. Raises `AlreadyExists` and changes nothing if
        the key is taken (of N concurrent creators exactly one wins), and `StoreFull` if there is no
        room. An exception raised by `parts` passes through and nothing is created. After
        `Unavailable` the object may or may not exist: callers that retry compare the content on
        `AlreadyExists`.
        """
        ...

    def get(self, key: str) -> Buffer:
        """Return the whole object, read-only; raise `NotFound` if there is none."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return bytes [offset, offset + length), fewer only at the object's end.

        Raise `NotFound` if there is no object.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`, in no particular order.

        `prefix` is empty or ends with `/`. Objects created or deleted during the listing may or may
        not appear; all others appear exactly once.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object; do nothing if there is none."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of the object; raise `NotFound` if there is none."""
        ...


def exists(store: ObjectStore, key: str) -> bool:
    """Return whether the store has an object of this key. Costs one stat."""
    try:
        store.stat(key)
    except NotFound:
        return False
    return True

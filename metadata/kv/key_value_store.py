"""The port to the key-value database of the index: maps of fields, ordered by explicit stamps.

Every value starts with a 16-byte stamp, and a field keeps the value with the greatest stamp ever
put (compared as bytes, or equally as two big-endian 64-bit numbers below 2^53). So a put may be
repeated, reordered or raced by another writer without harm: the index is a view of the commit log
that any number of processes bring up to date together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

STAMP_BYTES = 16


class MapFields(NamedTuple):
    """Some fields of one map."""

    key: bytes
    fields: Sequence[bytes]


class MapUpdate(NamedTuple):
    """Values of one map; `values[i]` belongs to `fields[i]` and starts with its stamp.

    No field occurs twice.
    """

    key: bytes
    fields: Sequence[bytes]
    values: Sequence[bytes]


class KeyValueStore(Protocol):
    """A key-value database, thread-safe; every call blocks and may raise `IndexUnavailable`.

    Keys are printable, 1-64 bytes, and no key is a prefix of another; fields are 0-255 bytes of any
    value; values are at least 16 bytes. A map without fields does not exist.
    """

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        """Return the values of all given fields, None for those that are missing.

        The values of several maps are not of one point in time. One round trip (in a cluster, one
        for each server).
        """
        ...

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all (field, value) pairs of a map in batches of bounded size, in no promised order.

        A field that is present all the while appears at least once; one put or removed meanwhile
        may or may not appear.
        """
        ...

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        """Put the updates, each value only if its stamp is greater than that of the present value.

        No update of a phase becomes visible before all updates of the earlier phases; a crash in
        the middle leaves a prefix of the phases and any part of the next one. A single field
        changes atomically. On return everything is as durable as the database makes it (LMDB:
        synced).
        """
        ...

    def remove(self, removals: Sequence[MapFields]) -> None:
        """Remove fields whatever their stamps; missing ones do not matter."""
        ...

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        """Remove each field whose value is still the given one, byte for byte (also a damaged one).

        So a caller that has looked at a value may remove it and never removes what another process
        has put there since. Comparing and removing a field is atomic.
        """
        ...

    def drop(self, keys: Sequence[bytes]) -> None:
        """Remove whole maps; missing ones do not matter."""
        ...

    def close(self) -> None:
        """Release connections and files. The call may be repeated."""
        ...


def read_map(index: KeyValueStore, key: bytes) -> dict[bytes, bytes]:
    """Return the fields of a map with their values; one scan."""
    found: dict[bytes, bytes] = {}
    for batch in index.scan(key):
        found.update(batch)
    return found

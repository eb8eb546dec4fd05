"""The key-value store in a folder of this machine: the embedded default, with no server to run.

A field lies under map key + field. Map keys are prefix-free, so a map is one range of the B-tree.
Every put is one write transaction, whatever its phases: after a crash all of it is there, or
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter, lt
from pathlib import Path
from typing import Final, TypeAlias, cast

import lmdb

from metadata.errors import IndexDamaged, IndexUnavailable
from metadata.kv.key_value_store import STAMP_BYTES, MapFields, MapUpdate
from metadata.kv.lmdb_environment import (
    INITIAL_MAP_BYTES,
    Result,
    acquire_environment,
    release_environment,
)

_SCAN_BATCH: Final = 4096
_FIRST_BATCH: Final = 64
"""The size of a scan's first batch.

Most maps are small, and pairs read past a map's end are discarded: 1 ms for 4096 fields. So the
batches grow, and most of what is read belongs to the map.
"""
_GROWTH: Final = 4

Pair: TypeAlias = tuple[bytes, bytes]


class LmdbFileStore:
    """A `KeyValueStore` in LMDB.

    Any number of stores, threads and processes may use one folder, and a store may be used on both
    sides of a fork. The file grows as needed and never shrinks.
    """

    def __init__(self, folder: str | Path, *, map_bytes: int = INITIAL_MAP_BYTES) -> None:
        self._environment = acquire_environment(Path(folder).absolute().resolve(), map_bytes)
        self._held = [self._environment]
        try:
            self._run(lambda _: None, write=False)
        except (IndexUnavailable, IndexDamaged):
            self.close()
            raise

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        """Return the values from one transaction, so of one point in time."""
        asked = [[key + field for field in fields] for key, fields in lookups]
        keys = [key for keys in asked for key in keys]
        found = self._run(lambda transaction: _present(transaction, keys), write=False)
        return [[found.get(key) for key in keys] for keys in asked]

    def scan(self, key: bytes) -> Iterator[list[Pair]]:
        """Yield the pairs of a map in the order of fields, one transaction a batch."""
        # Each batch has its own transaction: none stays open (and keeps old pages alive) while the
        # caller works or has forgotten the iterator.
        start, size = key, _FIRST_BATCH
        while True:
            pairs = self._run(partial(_range, start=start, size=size), write=False)
            if not _ascend(start, pairs):
                raise self._environment.damaged("its keys are out of order")
            batch = _belonging(key, pairs)
            if batch:
                yield batch
            if len(batch) < size:
                return
            start, size = pairs[-1][0] + b"\0", min(size * _GROWTH, _SCAN_BATCH)

    def check_map(self, key: bytes, is_sound: Callable[[bytes, bytes], bool]) -> None:
        """Raise `IndexDamaged` or `RecordCorrupt` if pages of the map are damaged.

        `is_sound` is a function of map key + field and value. Costs 0.2 ms, and 3 µs a record.
        """
        self._environment.check_part(key, is_sound)

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        """Put all phases in one transaction."""

        def put(transaction: lmdb.Transaction) -> None:
            for updates in phases:
                _put(transaction, updates)

        if any(update.fields for updates in phases for update in updates):
            self._run(put, write=True)

    def remove(self, removals: Sequence[MapFields]) -> None:
        """Remove all fields in one transaction."""
        keys = sorted(key + field for key, fields in removals for field in fields)

        def delete(transaction: lmdb.Transaction) -> None:
            for key in keys:
                transaction.delete(key)

        if keys:
            self._run(delete, write=True)

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        """Remove the fields with these values in one transaction."""
        pairs = sorted(
            (key + field, value)
            for key, fields, values in removals
            for field, value in zip(fields, values, strict=True)
        )

        def delete(transaction: lmdb.Transaction) -> None:
            for name, value in pairs:
                if transaction.get(name) == value:
                    transaction.delete(name)

        if pairs:
            self._run(delete, write=True)

    def drop(self, keys: Sequence[bytes]) -> None:
        """Remove all the maps in one transaction."""

        def delete(transaction: lmdb.Transaction) -> None:
            cursor = transaction.cursor()
            for key in keys:
                found = cursor.set_range(key)
                while found and bytes(cursor.key()).startswith(key):
                    found = cursor.delete()

        if keys:
            self._run(delete, write=True)

    def close(self) -> None:
        """Give the environment back; the last store of the folder closes it."""
        try:
            # one thread gets it, without a lock that a fork could copy
            release_environment(self._held.pop())
        except IndexError:
            pass

    def _run(self, operation: Callable[[lmdb.Transaction], Result], *, write: bool) -> Result:
        if not self._held:
            raise IndexUnavailable("this connection to the index is closed")
        return self._environment.run(operation, write=write)


def _is_newer(value: bytes, present: bytes) -> bool:
    return value[:STAMP_BYTES] > present[:STAMP_BYTES]


def _present(transaction: lmdb.Transaction, names: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(cast(list[Pair], transaction.cursor().getmulti(names)))


def _range(transaction: lmdb.Transaction, start: bytes, size: int) -> list[Pair]:
    cursor = transaction.cursor()
    if not cursor.set_range(start):
        return []
    return list(islice(cast(Iterator[Pair], cursor.iternext()), size))


def _ascend(start: bytes, pairs: list[Pair]) -> bool:
    """Return whether the keys ascend from `start` on: else a scan could go round for ever."""
    names = [name for name, _ in pairs]
    return not names or (names[0] >= start and all(map(lt, names, names[1:])))


def _belonging(key: bytes, pairs: list[Pair]) -> list[Pair]:
    """Return the (field, value) pairs of one map, which are the first of `pairs`."""
    end = len(pairs)
    if pairs and not pairs[-1][0].startswith(key):
        end = bisect_left(pairs, True, key=lambda pair: not pair[0].startswith(key))
    size = len(key)
    return [(name[size:], value) for name, value in pairs[:end]]


def _put(transaction: lmdb.Transaction, updates: Sequence[MapUpdate]) -> None:
    """Put the newer values.

    It is one call whatever the number of maps, and two more if any field exists. Each call releases
    the GIL, and a busy thread gives it back only every 5 ms.
    """
    pairs: list[Pair] = []
    for key, fields, values in sorted(
        updates, key=attrgetter("key")
    ):  # then all pairs are in the B-tree's order
        pairs += sorted(zip([key + field for field in fields], values, strict=True))
    _, absent = transaction.cursor().putmulti(pairs, overwrite=False)
    if absent < len(pairs):
        present = _present(transaction, [name for name, _ in pairs])
        if len(present) < len({name for name, _ in pairs}):
            raise lmdb.CorruptedError("a record is there and is not")
        newer = [pair for pair in pairs if _is_newer(pair[1], present[pair[0]])]
        transaction.cursor().putmulti(newer)

"""The key-value store in dictionaries: the reference implementation of the contract suite."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from metadata.kv.key_value_store import STAMP_BYTES, MapFields, MapUpdate

SCAN_BATCH = 4096


class MemoryStore:
    """A `KeyValueStore` that lives as long as the process. A put is one point in time."""

    def __init__(self) -> None:
        self._maps: dict[bytes, dict[bytes, bytes]] = {}
        self._lock = threading.Lock()

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        with self._lock:
            return [
                [present.get(field) for field in fields]
                for present, fields in (
                    (self._maps.get(key, {}), fields) for key, fields in lookups
                )
            ]

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the pairs that the map has at the start, in batches."""
        with self._lock:
            pairs = list(self._maps.get(key, {}).items())
        for at in range(0, len(pairs), SCAN_BATCH):
            yield pairs[at : at + SCAN_BATCH]

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        with self._lock:
            for updates in phases:
                for key, fields, values in updates:
                    if not fields:
                        continue
                    present = self._maps.setdefault(key, {})
                    for field, value in zip(fields, values, strict=True):
                        old = present.get(field)
                        if old is None or value[:STAMP_BYTES] > old[:STAMP_BYTES]:
                            present[field] = value

    def remove(self, removals: Sequence[MapFields]) -> None:
        with self._lock:
            for key, fields in removals:
                present = self._maps.get(key)
                if present is None:
                    continue
                for field in fields:
                    present.pop(field, None)
                if not present:
                    del self._maps[key]

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        with self._lock:
            for key, fields, values in removals:
                present = self._maps.get(key, {})
                for field, value in zip(fields, values, strict=True):
                    if present.get(field) == value:
                        del present[field]
                if not present:
                    self._maps.pop(key, None)

    def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._maps.pop(key, None)

    def close(self) -> None:
        """Do nothing; what was put stays readable."""

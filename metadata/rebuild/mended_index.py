"""A present index made equal to the rebuilt one, in place: what is right stays untouched and readable all the while."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.kv.key_value_store import STAMP_BYTES, KeyValueStore, MapFields, MapUpdate
from metadata.rebuild.map_comparison import (
    Mismatch,
    compare_fields,
    compare_map,
    maps_below,
)
from metadata.rebuild.map_sink import MapKind, MapPart


class MendedIndex:
    """Implements `MapSink` for an index with anything in it: damaged values, values of later commits, fields and maps of which
    the store knows nothing (found through the directories that name them). Nobody else may apply commits meanwhile.
    """

    def __init__(self, index: KeyValueStore) -> None:
        self.changed = 0
        """Records put because they were missing, different or damaged."""
        self.removed = 0
        """Records that nothing in the store says."""
        self._index = index
        self._known: set[bytes] = set()
        self._strange: list[Mismatch] = []

    def put(self, parts: Sequence[MapPart]) -> None:
        mismatches: list[Mismatch] = []
        for part in parts:
            found = compare_map(self._index, part)
            if part.kind is MapKind.DIRECTORIES:
                self._known.add(part.key)
                # They lead to maps below them, so they go when those have gone.
                self._strange += [m for m in found if m.expected is None]
                found = [m for m in found if m.expected is not None]
            mismatches += found
        self._mend(mismatches)

    def finish(self, dataset_id: bytes, state: MapPart) -> None:
        for strange in self._strange:
            if strange.field:
                self._drop_below(dataset_id, strange.path)
        self._mend(self._strange)
        self._mend(compare_fields(self._index, state))

    def _drop_below(self, dataset_id: bytes, directory: bytes) -> None:
        """Deepest first, so that who is interrupted still finds the rest."""
        parts = list(maps_below(self._index, dataset_id, directory, self._known))
        self.removed += sum(len(batch) for part in parts for batch in self._index.scan(part.key))
        self._index.drop([part.key for part in reversed(parts)])

    def _mend(self, mismatches: Sequence[Mismatch]) -> None:
        if not mismatches:
            return
        removals: dict[bytes, list[bytes]] = {}
        updates: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
        for mismatch in mismatches:
            key, field, present, expected = (
                mismatch.part.key,
                mismatch.field,
                mismatch.present,
                mismatch.expected,
            )
            if present is not None and (
                expected is None or expected[:STAMP_BYTES] <= present[:STAMP_BYTES]
            ):
                removals.setdefault(key, []).append(field)
            if expected is None:
                self.removed += 1
            else:
                self.changed += 1
                fields, values = updates.setdefault(key, ([], []))
                fields.append(field)
                values.append(expected)
        self._index.remove([MapFields(key, fields) for key, fields in removals.items()])
        self._index.put([[MapUpdate(key, *content) for key, content in updates.items()]])

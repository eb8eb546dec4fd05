"""The sink that makes a present index equal to the rebuilt one, in place.

Correct records stay untouched and readable all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.dataset_state import is_rebuilding, mark_rebuilding, unmark_rebuilding
from metadata.errors import MapOfWrongType
from metadata.kv.key_value_store import STAMP_BYTES, KeyValueStore, MapUpdate
from metadata.rebuild.map_comparison import (
    Mismatch,
    compare_fields,
    compare_map,
    maps_below,
)
from metadata.rebuild.map_sink import IndexMapPart, MapKind


class RepairedIndex:
    """A `MapSink` for an index with any content.

    It repairs damaged values, values of later commits, keys that hold no map, and fields and maps
    that the store does not know (found through the directories that name them). It puts the mark,
    so that no other process applies commits while it changes anything.

    If anything was changed, or the index was marked before, `settle(generation)` is called at the
    end, before the mark is removed. Records that other processes had applied of later commits may
    have been taken for wrong, in part: they have to be put again as if they were lost
    (`metadata.reapplication.reapply_later`).
    """

    def __init__(
        self, index: KeyValueStore, settle: Callable[[int], object] = lambda generation: None
    ) -> None:
        self.changed = 0
        """The records put because they were missing, different or damaged."""
        self.removed = 0
        """The records removed because nothing in the store calls for them."""
        self._index = index
        self._settle = settle
        self._known: set[bytes] = set()
        self._unexpected: list[Mismatch] = []
        self._dataset_id = b""
        self._generation = 0
        self._marked = False

    def begin(self, dataset_id: bytes, generation: int) -> None:
        self._dataset_id, self._generation = dataset_id, generation
        self._marked = is_rebuilding(self._index, dataset_id)

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        """Repair these maps; directories that should not exist stay until `finish`."""
        mismatches: list[Mismatch] = []
        for part in parts:
            found = self._compared(part)
            if part.kind is MapKind.DIRECTORIES:
                self._known.add(part.key)
                # They lead to the maps below them, so they are removed after those maps.
                self._unexpected += [m for m in found if m.expected is None]
                found = [m for m in found if m.expected is not None]
            mismatches += found
        self._repair(mismatches)

    def _compared(self, part: IndexMapPart) -> list[Mismatch]:
        """Return where the map differs; what is no map at its key is removed first."""
        while True:
            try:
                return compare_map(self._index, part)
            except MapOfWrongType as error:
                self._mark()  # until the map is whole again, nobody takes it for an empty one
                self._index.drop([error.key])
                self.removed += 1

    def _mark(self) -> None:
        if not self._marked:
            mark_rebuilding(self._index, self._dataset_id, self._generation)
            self._marked = True

    def finish(self, state: IndexMapPart) -> None:
        """Remove the directories that should not exist and repair the state.

        If the index is marked, `settle` is called and the mark is removed.
        """
        for unexpected in self._unexpected:
            if unexpected.field:
                self._drop_below(unexpected.path)
        self._repair(self._unexpected)
        self._repair(compare_fields(self._index, state))
        if self._marked:
            self._settle(self._generation)
            unmark_rebuilding(self._index, self._dataset_id)

    def _drop_below(self, directory: bytes) -> None:
        """Remove the maps below a directory, deepest first.

        After an interruption the rest is still found.
        """
        parts = list(maps_below(self._index, self._dataset_id, directory, self._known))
        self.removed += sum(len(batch) for part in parts for batch in self._index.scan(part.key))
        self._index.drop([part.key for part in reversed(parts)])

    def _repair(self, mismatches: Sequence[Mismatch]) -> None:
        if not mismatches:
            return
        self._mark()
        removals: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
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
                fields, values = removals.setdefault(key, ([], []))
                fields.append(field)
                values.append(present)
            if expected is None:
                self.removed += 1
            else:
                self.changed += 1
                fields, values = updates.setdefault(key, ([], []))
                fields.append(field)
                values.append(expected)
        self._index.remove_exactly([MapUpdate(key, *content) for key, content in removals.items()])
        self._index.put([[MapUpdate(key, *content) for key, content in updates.items()]])

"""The comparison of a rebuilt index with a present one, which stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from metadata import keys
from metadata.errors import MapOfWrongType
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.rebuild.index_difference import Fault, IndexDifference
from metadata.rebuild.map_comparison import (
    Mismatch,
    compare_fields,
    compare_map,
    maps_below,
)
from metadata.rebuild.map_sink import IndexMapPart, MapKind

LISTED: Final = 10_000
"""The most differences that are kept; all are counted."""


class ComparedIndex:
    """A `MapSink` that changes nothing and lists the differences.

    It reads every map once; what other processes put meanwhile may show as a difference.
    """

    def __init__(self, index: KeyValueStore, *, listed: int = LISTED) -> None:
        self.differences: list[IndexDifference] = []
        """The first `listed` differences."""
        self.counts: Counter[tuple[Fault, MapKind]] = Counter()
        """The counts of all differences."""
        self._index = index
        self._listed = listed
        self._known: set[bytes] = set()
        self._unexpected: list[bytes] = []
        self._dataset_id = b""

    @property
    def is_equal(self) -> bool:
        """True if no difference was found."""
        return not self.counts

    def begin(self, dataset_id: bytes, generation: int) -> None:
        self._dataset_id = dataset_id

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        """Compare these maps with the index."""
        for part in parts:
            mismatches = self._compared(part)
            self._note(mismatches)
            if part.kind is MapKind.DIRECTORIES:
                self._known.add(part.key)
                self._unexpected += [m.path for m in mismatches if m.expected is None and m.field]

    def finish(self, state: IndexMapPart) -> None:
        """Compare the state, and the maps below directories that should not exist.

        A mark of a rebuild counts as a difference.
        """
        for directory in self._unexpected:
            for part in maps_below(self._index, self._dataset_id, directory, self._known):
                self._note(self._compared(part))
                self._known.add(part.key)
        try:
            self._note(compare_fields(self._index, state))
            [[mark]] = self._index.get_many([MapFields(state.key, [keys.REBUILDING])])
        except MapOfWrongType:
            self._note(_all_missing(state))
            return
        if mark is not None:
            self._note([Mismatch(state, keys.REBUILDING, mark, None)])

    def _compared(self, part: IndexMapPart) -> list[Mismatch]:
        """Return where the map differs; where there is no map, all of it is missing."""
        try:
            return compare_map(self._index, part)
        except MapOfWrongType:
            return _all_missing(part)

    def _note(self, mismatches: Iterable[Mismatch]) -> None:
        for mismatch in mismatches:
            difference = mismatch.difference()
            self.counts[difference.fault, difference.kind] += 1
            if len(self.differences) < self._listed:
                self.differences.append(difference)


def _all_missing(part: IndexMapPart) -> list[Mismatch]:
    return [
        Mismatch(part, field, None, value)
        for field, value in zip(part.fields, part.values, strict=True)
    ]

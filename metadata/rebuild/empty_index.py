"""The sink that puts a rebuilt index into an empty one, the state last."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.dataset_state import mark_rebuilding, unmark_rebuilding
from metadata.kv.key_value_store import KeyValueStore, MapUpdate
from metadata.rebuild.map_sink import IndexMapPart


class EmptyIndex:
    """A `MapSink` for an index without records of the dataset.

    It neither reads nor removes the records of an interrupted rebuild: `RepairedIndex` handles
    those.
    """

    def __init__(self, index: KeyValueStore) -> None:
        self._index = index
        self._dataset_id = b""

    def begin(self, dataset_id: bytes, generation: int) -> None:
        """Mark the index as being rebuilt."""
        self._dataset_id = dataset_id
        mark_rebuilding(self._index, dataset_id, generation)

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        """Put these maps without reading the index."""
        self._index.put(
            [[MapUpdate(part.key, part.fields, part.values) for part in parts if part.fields]]
        )

    def finish(self, state: IndexMapPart) -> None:
        """Put the state and remove the mark."""
        self.put([state])
        unmark_rebuilding(self._index, self._dataset_id)

"""A rebuilt index put where nothing is yet: large sorted puts, the state last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metadata.kv.key_value_store import KeyValueStore, MapUpdate
from metadata.rebuild.map_sink import MapPart
from metadata.rebuild.under_way import mark, unmark

_PUT_BYTES: Final = 16 << 20
"""One synced transaction of LMDB, two pipelines of Redis: what memory holds besides the part in work."""


class EmptyIndex:
    """Implements `MapSink`. What an interrupted one left is neither read nor removed: `MendedIndex` takes that over."""

    def __init__(self, index: KeyValueStore) -> None:
        self._index = index
        self._pending: list[MapUpdate] = []
        self._pending_bytes = 0
        self._dataset_id = b""

    def begin(self, dataset_id: bytes, generation: int) -> None:
        self._dataset_id = dataset_id
        mark(self._index, dataset_id, generation)

    def put(self, parts: Sequence[MapPart]) -> None:
        for part in parts:
            if not part.fields:
                continue
            self._pending.append(MapUpdate(part.key, part.fields, part.values))
            self._pending_bytes += sum(map(len, part.values))
            if self._pending_bytes >= _PUT_BYTES:
                self._flush()

    def finish(self, state: MapPart) -> None:
        self._flush()
        self._index.put([[MapUpdate(state.key, state.fields, state.values)]])
        unmark(self._index, self._dataset_id)

    def _flush(self) -> None:
        if self._pending:
            self._index.put([self._pending])
        self._pending, self._pending_bytes = [], 0

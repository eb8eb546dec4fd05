"""Access to an index in any state: empty, half filled, damaged or of another dataset.

Only sound records are trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from chunkstore.chunk_format import DatasetRef
from metadata import keys
from metadata.complete_listing import check_complete
from metadata.dataset_state import indexed_dataset, read_state, register_dataset
from metadata.errors import IndexEvicts, MapOfWrongType, RecordCorrupt, RecordsLost
from metadata.kv.evictions import evictions_of
from metadata.kv.key_value_store import STAMP_BYTES, KeyValueStore, MapFields, MapUpdate
from metadata.namespace import Namespace
from metadata.records import DatasetState


def applied_generation(index: KeyValueStore, dataset: DatasetRef) -> int:
    """Return the generation that the index has applied; 0 if its record is missing or not sound."""
    try:
        return read_state(index, dataset.id, keys.APPLIED).generation
    except (RecordCorrupt, struct.error):
        return 0


def known_dataset(index: KeyValueStore, name: str) -> DatasetRef | None:
    """Return the dataset of that name as the index knows it, None also if its record is damaged."""
    try:
        return indexed_dataset(index, name)
    except RecordCorrupt:
        return None


def is_empty(index: KeyValueStore, dataset: DatasetRef) -> bool:
    """Return whether the index has nothing of the dataset, as far as four short scans show.

    A key that holds no map counts as something.
    """
    maps = (
        keys.state_of(dataset.id),
        keys.chunks_of(dataset.id),
        keys.directories_of(dataset.id, b""),
        keys.files_of(dataset.id, b""),
    )
    try:
        return known_dataset(index, dataset.name) != dataset and not any(
            batch for key in maps for batch in index.scan(key)
        )
    except MapOfWrongType:
        return False


def remove_wrong_types(index: KeyValueStore, dataset: DatasetRef) -> int:
    """Remove what is no map at the keys of the dataset's state and of all names; count it.

    Every step of a recovery reads these two, so they cannot be replaced in the course of it. Other
    datasets register their names again when they are next used.
    """
    removed = 0
    for key, field in ((keys.DATASETS, dataset.name.encode()), (keys.state_of(dataset.id), b"")):
        try:
            index.get_many([MapFields(key, [field])])
        except MapOfWrongType as error:
            index.drop([error.key])
            removed += 1
    return removed


def unpin_generation(index: KeyValueStore, dataset: DatasetRef) -> bool:
    """Let an index that stays at one generation follow the store again.

    Returns whether it stayed at one.
    """
    key = keys.state_of(dataset.id)
    if index.get_many([MapFields(key, [keys.HELD])])[0][0] is None:
        return False
    index.remove([MapFields(key, [keys.HELD])])
    return True


def claim_name(index: KeyValueStore, dataset: DatasetRef, born_ns: int) -> bool:
    """Let the dataset's name mean this dataset.

    Returns whether the index had something else under the name, or nothing.
    """
    if known_dataset(index, dataset.name) == dataset:
        return False
    index.remove([MapFields(keys.DATASETS, [dataset.name.encode()])])
    register_dataset(index, dataset, born_ns)
    return True


def check_kept(index: KeyValueStore, dataset: DatasetRef, state: DatasetState) -> None:
    """Raise `IndexEvicts` if the index's server has evicted records that were just put.

    `state` is what was put last. Costs one round trip, and if the server evicts or has evicted
    anything, a listing of the whole dataset.
    """
    if not evictions_of(index, now=True).records_may_be_missing:
        return
    namespace = Namespace(index, dataset)
    try:
        check_complete(namespace)
        is_kept = (
            read_state(index, dataset.id, keys.TOTALS).generation >= state.generation
            and namespace.state().generation >= state.generation
            and (len(namespace.chunks()) == state.chunks or namespace.state() != state)
        )
    except RecordsLost:
        is_kept = False
    if not is_kept:
        raise IndexEvicts(
            f"the index of {dataset.name} does not hold what was put: its server evicts records; "
            "give it more memory, set maxmemory-policy noeviction, then run `dlcmd recover "
            f"{dataset.name}` again"
        )


class CountedChanges:
    """A `KeyValueStore` that counts the records that puts and removals change in another store.

    It passes all calls on. A put costs one more read of the same fields.
    """

    def __init__(self, index: KeyValueStore) -> None:
        self.changed = 0
        self._index = index

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        return self._index.get_many(lookups)

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        return self._index.scan(key)

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        """Put the updates and count those that are newer than the present values."""
        updates = [update for phase in phases for update in phase]
        present = self._index.get_many([MapFields(key, fields) for key, fields, _ in updates])
        changed = {
            (update.key, field)
            for update, values in zip(updates, present, strict=True)
            for field, value, now in zip(update.fields, update.values, values, strict=True)
            if now is None or value[:STAMP_BYTES] > now[:STAMP_BYTES]
        }
        self._index.put(phases)
        self.changed += len(changed)

    def remove(self, removals: Sequence[MapFields]) -> None:
        """Remove the fields and count those that were present."""
        present = self._index.get_many(removals)
        self._index.remove(removals)
        self.changed += sum(value is not None for values in present for value in values)

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        """Remove the fields with these values and count them."""
        present = self._index.get_many([MapFields(key, fields) for key, fields, _ in removals])
        self._index.remove_exactly(removals)
        self.changed += sum(
            now == value
            for removal, values in zip(removals, present, strict=True)
            for value, now in zip(removal.values, values, strict=True)
        )

    def drop(self, keys: Sequence[bytes]) -> None:
        """Drop the maps, without counting their records."""
        self._index.drop(keys)

    def close(self) -> None:
        self._index.close()

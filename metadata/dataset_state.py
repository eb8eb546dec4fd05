"""The datasets that an index knows, the generation of each, and what may be done with it.

An index may be held at a generation for good, or be marked as being rebuilt. A killed process
leaves the mark, so that no process takes the partial content for an index. Without the mark, half
the records of a late generation under an early `applied` would be compared with commits, and the
totals would stay wrong for ever.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from chunkstore.chunk_format import DatasetRef
from metadata import keys
from metadata.errors import IndexBehind, RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate, read_map
from metadata.records import EMPTY_STATE, DatasetState, sealed

_STAMP = struct.Struct(">QQ")


def read_state(index: KeyValueStore, dataset_id: bytes, field: bytes) -> DatasetState:
    """Return the state `keys.APPLIED` or `keys.TOTALS` of a dataset; one get.

    If no commit was applied, its generation is 0.
    """
    key = keys.state_of(dataset_id)
    value = index.get_many([MapFields(key, [field])])[0][0]
    return EMPTY_STATE if value is None else DatasetState.decode(key, field, value)


def read_totals(index: KeyValueStore, dataset_id: bytes) -> DatasetState:
    """Return the totals of an index to which commits may be applied; one get.

    Raises `IndexBehind` for an index that is being rebuilt.
    """
    key = keys.state_of(dataset_id)
    [[value, rebuilding]] = index.get_many([MapFields(key, [keys.TOTALS, keys.REBUILDING])])
    if rebuilding is not None:
        raise IndexBehind(
            "the index is being rebuilt, or a rebuild was interrupted: "
            "wait for it, or run `dlcmd recover`"
        )
    return EMPTY_STATE if value is None else DatasetState.decode(key, keys.TOTALS, value)


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The generation that an index has reached, and whether it may go further."""

    applied: DatasetState
    held: int | None
    """The generation at which the index is held; None if it follows the store."""
    is_rebuilding: bool
    """True if a process is filling the index, or was killed while it did: it is incomplete."""


def read_progress(index: KeyValueStore, dataset_id: bytes) -> IndexProgress:
    """Return the progress of an index; one get."""
    key = keys.state_of(dataset_id)
    fields = [keys.APPLIED, keys.HELD, keys.REBUILDING]
    applied, held, rebuilding = index.get_many([MapFields(key, fields)])[0]
    return IndexProgress(
        EMPTY_STATE if applied is None else DatasetState.decode(key, keys.APPLIED, applied),
        None if held is None else _generation_held(key, held),
        rebuilding is not None,
    )


def read_held(index: KeyValueStore, dataset_id: bytes) -> int | None:
    """Return the generation at which the index is held, None if it follows the store. One get."""
    key = keys.state_of(dataset_id)
    value = index.get_many([MapFields(key, [keys.HELD])])[0][0]
    return None if value is None else _generation_held(key, value)


def _generation_held(key: bytes, value: bytes) -> int:
    body = value[:-8]
    if len(body) != _STAMP.size or sealed(key, keys.HELD, body) != value:
        raise RecordCorrupt(
            "the index record of the generation at which the index is held is damaged"
        )
    return int(_STAMP.unpack(body)[0])


def hold(index: KeyValueStore, dataset_id: bytes, generation: int) -> None:
    """Keep the index at this generation for good; of two generations the greater one stays."""
    _put_generation(index, dataset_id, keys.HELD, generation)


def mark_rebuilding(index: KeyValueStore, dataset_id: bytes, generation: int) -> None:
    """Mark the index as being rebuilt to this generation."""
    _put_generation(index, dataset_id, keys.REBUILDING, generation)


def is_rebuilding(index: KeyValueStore, dataset_id: bytes) -> bool:
    """Return whether the index is being rebuilt, or a rebuild of it was interrupted. One get."""
    [[value]] = index.get_many([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])
    return value is not None


def unmark_rebuilding(index: KeyValueStore, dataset_id: bytes) -> None:
    """Remove the mark: the index is whole."""
    index.remove([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])


def _put_generation(index: KeyValueStore, dataset_id: bytes, field: bytes, generation: int) -> None:
    key = keys.state_of(dataset_id)
    value = sealed(key, field, _STAMP.pack(generation, 0))
    index.put([[MapUpdate(key, [field], [value])]])


def register_dataset(index: KeyValueStore, dataset: DatasetRef, born_ns: int) -> None:
    """Store the dataset's name; of two datasets of one name, the one created later stays."""
    name = dataset.name.encode()
    # Stamps must stay below 2^53. Microseconds since 1970 do so until the year 2255.
    value = sealed(keys.DATASETS, name, _STAMP.pack(born_ns // 1000, 0) + dataset.id)
    index.put([[MapUpdate(keys.DATASETS, [name], [value])]])


def list_datasets(index: KeyValueStore) -> list[DatasetRef]:
    """Return the datasets that the index knows, by name."""
    found = read_map(index, keys.DATASETS)
    return [DatasetRef(name.decode(), _dataset_id(name, found[name])) for name in sorted(found)]


def indexed_dataset(index: KeyValueStore, name: str) -> DatasetRef | None:
    """Return the dataset of that name as the index knows it, or None. One get."""
    field = name.encode()
    value = index.get_many([MapFields(keys.DATASETS, [field])])[0][0]
    return None if value is None else DatasetRef(name, _dataset_id(field, value))


def _dataset_id(name: bytes, value: bytes) -> bytes:
    _verify_name(name, value)
    return value[_STAMP.size : -8]


def _verify_name(name: bytes, value: bytes) -> None:
    body = value[:-8]
    if len(body) != _STAMP.size + 16 or sealed(keys.DATASETS, name, body) != value:
        raise RecordCorrupt(
            f"the index record of dataset {name.decode(errors='replace')} is damaged"
        )

"""The datasets that an index knows, and the generation to which each has been applied."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from chunkstore.chunk_format import DatasetRef
from metadata import keys
from metadata.errors import IndexBehind, RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.records import EMPTY_STATE, DatasetState

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
    body, check = value[:-8], value[-8:]
    if len(body) != _STAMP.size or xxhash.xxh3_64_digest(key + keys.HELD + body) != check:
        raise RecordCorrupt(
            "the index record of the generation at which the index is held is damaged"
        )
    return int(_STAMP.unpack(body)[0])


def hold(index: KeyValueStore, dataset_id: bytes, generation: int) -> None:
    """Keep the index at this generation for good; of two generations the greater one stays."""
    key = keys.state_of(dataset_id)
    body = _STAMP.pack(generation, 0)
    value = body + xxhash.xxh3_64_digest(key + keys.HELD + body)
    index.put([[MapUpdate(key, [keys.HELD], [value])]])


def register_dataset(index: KeyValueStore, dataset: DatasetRef, born_ns: int) -> None:
    """Store the dataset's name; of two datasets of one name, the one created later stays."""
    name = dataset.name.encode()
    # Stamps must stay below 2^53. Microseconds since 1970 do so until the year 2255.
    body = _STAMP.pack(born_ns // 1000, 0) + dataset.id
    value = body + xxhash.xxh3_64_digest(keys.DATASETS + name + body)
    index.put([[MapUpdate(keys.DATASETS, [name], [value])]])


def list_datasets(index: KeyValueStore) -> list[DatasetRef]:
    """Return the datasets that the index knows, by name."""
    found = {name: value for batch in index.scan(keys.DATASETS) for name, value in batch}
    return [DatasetRef(name.decode(), _dataset_id(name, found[name])) for name in sorted(found)]


def indexed_dataset(index: KeyValueStore, name: str) -> DatasetRef | None:
    """Return the dataset of that name as the index knows it, or None. One get."""
    field = name.encode()
    value = index.get_many([MapFields(keys.DATASETS, [field])])[0][0]
    return None if value is None else DatasetRef(name, _dataset_id(field, value))


def _dataset_id(name: bytes, value: bytes) -> bytes:
    body, check = value[:-8], value[-8:]
    if len(body) != _STAMP.size + 16 or xxhash.xxh3_64_digest(keys.DATASETS + name + body) != check:
        raise RecordCorrupt(
            f"the index record of dataset {name.decode(errors='replace')} is damaged"
        )
    return body[_STAMP.size :]

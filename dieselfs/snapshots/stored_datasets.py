"""The datasets of a store as the store has them, with totals from where they are at hand.

The store alone says which datasets there are, and their generations. Totals are in an index, or in
a published snapshot's header, if it is of the newest generation. An index that lacks a few commits
is brought up to date; one that lacks many is not, since that may take minutes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import Commit, find_dataset, newest_generation
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import check_dataset_name, commit_key
from chunkstore.stores.folder_names import folder_names
from chunkstore.stores.object_store import ObjectStore
from metadata import keys
from metadata.dataset_state import indexed_dataset, read_state
from metadata.errors import DatasetNotFound, IndexBehind, RecordCorrupt, SnapshotRefused
from metadata.kv.key_value_store import KeyValueStore
from metadata.records import EMPTY_STATE

_NOT_COUNTED: Final = (Corrupt, NotFound, DatasetNotFound, IndexBehind, RecordCorrupt)
_FEW_COMMITS: Final = 16
"""The most missing commits that are applied to the index. A commit has some 16 chunks."""


@dataclass(frozen=True, slots=True)
class DatasetTotals:
    """What is live in a dataset at its newest generation."""

    files: int
    bytes: int
    directories: int
    """The directories without the root."""
    chunks: int | None
    """The number of chunks; None from a snapshot, which names only those with a live file."""


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset at its newest generation."""

    ref: DatasetRef
    generation: int
    updated_ns: int
    """The time of its last commit, by the writer's clock."""
    totals: DatasetTotals | None
    """None if neither the index nor a published snapshot has them."""


def dataset_names(store: ObjectStore) -> list[str]:
    """Return the names in the store that may be datasets, sorted; removed ones may be left."""
    return [name for name in folder_names(store, "datasets/") if _is_legal(name)]


def stored_dataset(store: ObjectStore, index: KeyValueStore, name: str) -> StoredDataset | None:
    """Return the dataset of that name; None if there is none, or it is half removed.

    Raises `Corrupt` if its first or last commit is damaged.

    Costs a listing of the commits and two gets; and, if the index is not up to date, a listing of
    the snapshots and 4 KiB of one, or the missing commits.
    """
    try:
        ref = find_dataset(store, name)
        last = None if ref is None else _last_commit(store, ref)
    except NotFound:  # it is being removed
        return None
    except Corrupt as error:
        raise Corrupt(f"dataset {name}: {error}; see `dlcmd fsck {name}`") from error
    if ref is None or last is None or last.removed:
        return None
    return StoredDataset(ref, last.generation, last.time_ns, _totals(store, index, ref, last))


def _last_commit(store: ObjectStore, ref: DatasetRef) -> Commit | None:
    """Return the newest commit, past those that a former dataset of the name left behind."""
    for generation in range(newest_generation(store, ref.name), 0, -1):
        commit = Commit.decode(store.get(commit_key(ref.name, generation)), generation)
        if commit.dataset_id == ref.id:
            return commit
    return None


def _totals(
    store: ObjectStore, index: KeyValueStore, ref: DatasetRef, last: Commit
) -> DatasetTotals | None:
    applied = EMPTY_STATE
    with suppress(*_NOT_COUNTED):
        if indexed_dataset(index, ref.name) == ref:
            applied = read_state(index, ref.id, keys.APPLIED)
    if applied.generation < last.generation:
        if found := _published_totals(store, ref, last.generation):
            return found
        if last.generation - applied.generation > _FEW_COMMITS:
            return None
        from dieselfs.dataset.dataset import open_dataset

        with suppress(*_NOT_COUNTED):
            applied = open_dataset(store, index, ref.name).namespace.state()
    if applied.generation < last.generation:  # it is held at a generation, or damaged
        return None
    return DatasetTotals(applied.files, applied.bytes, applied.directories, applied.chunks)


def _published_totals(store: ObjectStore, ref: DatasetRef, generation: int) -> DatasetTotals | None:
    from dieselfs.snapshots.lifecycle import list_published, published_header

    published = list_published(store, ref.name)
    if not published or published[-1].generation != generation:
        return None
    with suppress(NotFound, SnapshotRefused):
        header = published_header(store, ref.name, published[-1])
        if header.dataset == ref:
            return DatasetTotals(header.files, header.total_bytes, header.directories - 1, None)
    return None


def _is_legal(name: str) -> bool:
    try:
        check_dataset_name(name)
    except ValueError:
        return False
    return True

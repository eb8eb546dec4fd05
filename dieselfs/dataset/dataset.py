"""One opened dataset: its store, its index, and the parts that work on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chunkstore import store_settings
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import BIRTH_GENERATION, Commit, CommitLog, create_dataset, find_dataset
from chunkstore.errors import ChunkStoreError, Corrupt, Denied, NotFound
from chunkstore.object_keys import commit_prefix
from chunkstore.removal import finish_removal, is_removed, mark_removed, sweep_old_end
from chunkstore.stores.folder_names import folder_names
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.time_left import OperationEnds
from dieselfs.errors import Refused
from metadata import keys
from metadata.dataset_state import indexed_dataset, register_dataset
from metadata.errors import DatasetNotFound
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.namespace import Namespace
from metadata.records import DatasetState

if TYPE_CHECKING:
    from chunkstore.packing_settings import PackingSettings

_GUESS_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Dataset:
    """An opened dataset, as thread-safe as its store and index."""

    ref: DatasetRef
    store: ObjectStore
    index: KeyValueStore
    log: CommitLog
    reader: ChunkReader
    namespace: Namespace
    born: bool = False
    """True if this call of `open_dataset` created the dataset."""

    def publish(self, commit: Commit, heads: Sequence[bytes]) -> DatasetState:
        """Apply a commit just made here to the index.

        Earlier commits of other writers, and the chunks that the commit retires, are read from the
        store.
        """
        applied = self.namespace.state()
        if applied.generation + 1 == commit.generation and not commit.retired:
            return self.namespace.apply(commit, heads)
        return self.catch_up()

    def check_writable(self) -> None:
        """Raise `Refused` if the index stays at one generation. Costs one get.

        A writer with such an index would not see the current versions.
        """
        if (generation := self.namespace.held()) is not None:
            raise Refused(
                f"this index of {self.ref.name} stays at generation {generation} and is read-only",
                "write with another --index, or update this one with `dlcmd recover --to`",
            )

    def catch_up(self) -> DatasetState:
        """Apply the store's commits that the index lacks.

        Costs one get each from store and index when there is nothing to apply.
        """
        return self.namespace.catch_up(self.log, self.reader)


def existing_dataset(store: ObjectStore, name: str) -> DatasetRef:
    """Return the dataset that has the name; raise `DatasetNotFound` if there is none."""
    ref = find_dataset(store, name)
    if ref is None:
        raise no_dataset(store, name)
    return ref


def no_dataset(store: ObjectStore, name: str) -> DatasetNotFound:
    """Return the error for a name without a dataset, with the nearest name that has one.

    Costs one listing of the names in the store, and at most 2 s.
    """
    from difflib import get_close_matches

    near: list[str] = []
    with suppress(ChunkStoreError), OperationEnds(_GUESS_S):
        near = get_close_matches(name, folder_names(store, "datasets/"), n=1)
    hint = "list the datasets with `dlcmd dataset ls`; check --store and --index"
    if near:
        hint = f"did you mean {near[0]!r}? `dlcmd dataset ls` lists all"
    return DatasetNotFound(f"there is no dataset {name!r}: {hint}")


def stored_names(store: ObjectStore) -> list[str]:
    """Return the names of the store's datasets. This lists the whole store."""
    return sorted({info.key.split("/")[1] for info in store.list("datasets/")})


def open_dataset(
    store: ObjectStore,
    index: KeyValueStore,
    name: str,
    *,
    create: bool = False,
    packing: PackingSettings | None = None,
) -> Dataset:
    """Open a dataset and update the index from the store, which is authoritative.

    Raises `DatasetNotFound`, or creates the dataset if `create` is given. A dataset that this call
    creates remembers `packing`.
    """
    record = 0 if packing is None else packing.encode()
    ref, born = (
        create_dataset(store, name, record) if create else (find_dataset(store, name), False)
    )
    if ref is None:
        raise no_dataset(store, name)
    if born:
        _sweep(store, ref)
    known = indexed_dataset(index, name)
    if create and not born and known != ref:
        sweep_old_end(store, ref)  # the creator may have been killed before
    if known == ref or not is_removed(store, name):
        log = CommitLog(store, ref)
        dataset = Dataset(
            ref, store, index, log, ChunkReader(store, ref), Namespace(index, ref), born
        )
        if known != ref:
            _register(index, ref, log.read(BIRTH_GENERATION).time_ns)
        if _catches_up(dataset):
            return dataset
    if not create:
        raise DatasetNotFound(
            f"dataset {name!r} is half removed: finish it with `dlcmd dataset rm {name}`"
        )
    finish_removed(store, index, ref)
    return open_dataset(store, index, name, create=True, packing=packing)


def _catches_up(dataset: Dataset) -> bool:
    """Apply the commits that the index lacks; return False if the dataset is being removed."""
    try:
        dataset.catch_up()
    except DatasetNotFound:
        if not is_removed(dataset.store, dataset.ref.name):
            raise
        return False
    return True


def _sweep(store: ObjectStore, ref: DatasetRef) -> None:
    """Delete the commits that a writer of a former dataset of the name left behind.

    A dataset is freed of them when it is created.
    """
    for info in list(store.list(commit_prefix(ref.name))):
        generation = info.key.rpartition("/")[2]
        if not generation.isdigit():
            continue
        with suppress(NotFound):  # its writer has deleted it meanwhile: see `CommitLog.append`
            if Commit.decode(store.get(info.key), int(generation)).dataset_id != ref.id:
                store.delete(info.key)


def _register(index: KeyValueStore, ref: DatasetRef, born_ns: int) -> None:
    """Register the dataset, also after a former one of the name that a faster clock dated later."""
    register_dataset(index, ref, born_ns)
    if indexed_dataset(index, ref.name) != ref:
        index.remove([MapFields(keys.DATASETS, [ref.name.encode()])])
        register_dataset(index, ref, born_ns)


def remove_dataset(
    store: ObjectStore, index: KeyValueStore, name: str, only: DatasetRef | None = None
) -> None:
    """Remove a dataset from store and index permanently; its name may be used again.

    Its settings in the store go with it. Repeat the call after a crash. Raises `DatasetNotFound`,
    also if the name belongs to another dataset than `only` by now. Costs one delete for each object
    and one drop for each directory.
    """
    ref = find_dataset(store, name)
    if ref is not None and only not in (None, ref):
        raise DatasetNotFound(
            f"dataset {name!r} was removed, and another one has its name now: it stays"
        )
    # Settings that are damaged, or that this user may not change, keep no dataset in the store.
    with suppress(Corrupt, Denied):
        store_settings.change(store, lambda settings: settings.replaced(name, {}))
    if ref is None:
        if finish_removal(store, name):  # only the last step was missing
            return
        raise no_dataset(store, name)
    if not is_removed(store, name):
        mark_removed(store, CommitLog(store, ref))
    finish_removed(store, index, ref)


def finish_removed(store: ObjectStore, index: KeyValueStore, ref: DatasetRef) -> None:
    """Delete what is left of a dataset that has ended; a next one of its name stays."""
    Namespace(index, ref).forget()
    finish_removal(store, ref.name)

"""The choice of a snapshot file: by id, by file, or the newest that is as fresh as the dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chunkstore.commit_log import find_dataset
from chunkstore.errors import ChunkStoreError
from dieselfs.errors import LocalFileError, SnapshotNotFound
from dieselfs.snapshots import lifecycle
from dieselfs.snapshots.tagging import resolved
from metadata.errors import SnapshotRefused, SnapshotStale
from metadata.snapshot import Snapshot
from metadata.snapshot_folder import file_name, publish

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from metadata.kv.key_value_store import KeyValueStore

_COPY_BYTES: Final = 8 << 20


def find_snapshot(which: str, dataset: str, folder: Path, store: ObjectStore) -> Path:
    """Return the local file of a snapshot, pulled if it is not here yet.

    `which` is an id or its beginning, a generation, or a tag.
    """
    which = resolved(which, dataset, store)
    matching = [
        path
        for path in _local(folder, dataset, store)
        if lifecycle.is_called(lifecycle.id_of(path), which)
    ]
    return matching[-1] if matching else pull_snapshot(which, dataset, folder, store)


def pull_snapshot(which: str | None, dataset: str, folder: Path, store: ObjectStore) -> Path:
    """Download a published snapshot to this machine, verify it, and return its file.

    `which` is an id or its beginning, a generation, or a tag; None means the newest. Raises
    `SnapshotNotFound`.
    """
    which = None if which is None else resolved(which, dataset, store)
    return lifecycle.pull(store, dataset, which, folder)


def find_file_or_snapshot(which: str, dataset: str, folder: Path, store: ObjectStore) -> Path:
    """Return the file of a snapshot as `find_snapshot` does; `which` may also be a file.

    A file that lies outside of `folder` is verified and copied into it.
    """
    if "/" not in which and not os.path.isfile(which):
        return find_snapshot(which, dataset, folder, store)
    path = Path(which).absolute()
    return path if path.parent == folder.absolute() else import_snapshot(path, dataset, folder)


def import_snapshot(path: Path, dataset: str, folder: Path) -> Path:
    """Verify a snapshot file, and copy it into the local folder unless it is there already.

    Nothing else may map the copy, write to it or truncate it.
    """
    try:
        known = _adopted(path, dataset, folder)
        if known is not None:
            return known
        with publish(folder) as (copy, finish), open(path, "rb") as original:
            while part := original.read(_COPY_BYTES):
                copy.write(part)
            copy.flush()
            Snapshot.verify(copy.name)
            with Snapshot.open(copy.name) as snapshot:
                check_dataset(snapshot, dataset, path)
                name = file_name(dataset, snapshot.id)
            return finish(name)
    except OSError as error:
        raise LocalFileError(f"{error.filename or path}: {error.strerror}") from error


def _adopted(path: Path, dataset: str, folder: Path) -> Path | None:
    """Return the local copy of a snapshot file; None if there is none with the same content."""
    with Snapshot.open(path) as original:
        check_dataset(original, dataset, path)
        copy = folder / file_name(dataset, original.id)
        if not copy.is_file():
            return None
        with Snapshot.open(copy) as adopted:
            return copy if adopted.header == original.header else None


def check_dataset(snapshot: Snapshot, dataset: str, path: Path) -> None:
    """Raise `SnapshotRefused` if a snapshot is of a dataset of another name."""
    if snapshot.dataset.name != dataset:
        raise SnapshotRefused(
            f"{path} is a snapshot of dataset {snapshot.dataset.name}, not of {dataset}"
        )


def newest_fresh(dataset: str, folder: Path, store: ObjectStore, index: KeyValueStore) -> Path:
    """Return the newest snapshot if it is as new as the dataset.

    A local snapshot is tried first, then the newest published one. Raises `SnapshotStale` if
    neither is as new, and `SnapshotNotFound` if there is none.
    """
    local = _local(folder, dataset, store)
    if not local:
        return _published_fresh(dataset, folder, store, index)
    try:
        _check_fresh(local[-1], index)
    except SnapshotStale:
        newest = lifecycle.list_published(store, dataset)
        if not newest or lifecycle.id_of(local[-1]) == newest[-1].snapshot_id:
            raise
        return _published_fresh(dataset, folder, store, index)
    return local[-1]


def newest_known(dataset: str, folder: Path, store: ObjectStore) -> Path:
    """Return the newest snapshot without asking an index.

    It is the newest published one, or the newest local one if that is newer or the store does not
    answer. Raises `SnapshotNotFound`.
    """
    local = _local(folder, dataset, store)
    try:
        published: Sequence[lifecycle.PublishedSnapshot] = lifecycle.list_published(store, dataset)
    except ChunkStoreError:
        published = []
    here = lifecycle.generation_of(lifecycle.id_of(local[-1])) if local else -1
    if published and here < published[-1].generation:
        return lifecycle.pull(store, dataset, published[-1].snapshot_id, folder)
    if local:
        return local[-1]
    raise SnapshotNotFound(
        f"there is no snapshot of {dataset}", f"create one with `dlcmd snapshot create {dataset}`"
    )


def _published_fresh(dataset: str, folder: Path, store: ObjectStore, index: KeyValueStore) -> Path:
    if not lifecycle.list_published(store, dataset):
        raise SnapshotNotFound(
            f"there is no snapshot of {dataset} yet",
            f"create one with `dlcmd snapshot create {dataset}`, or use --refresh",
        )
    path = lifecycle.pull(store, dataset, None, folder)
    _check_fresh(path, index)
    return path


def _check_fresh(path: Path, index: KeyValueStore) -> None:
    with Snapshot.open(path) as snapshot:
        lifecycle.check_fresh(snapshot, index)


def _local(folder: Path, dataset: str, store: ObjectStore) -> list[Path]:
    """Return the local snapshots of the dataset that has the name now.

    If the store can't tell, the result has those of all datasets that ever had the name.
    """
    try:
        found = find_dataset(store, dataset)
    except ChunkStoreError:
        found = None
    return lifecycle.list_local(folder, dataset, found.id if found else None)

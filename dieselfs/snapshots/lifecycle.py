"""Snapshots from the user's view.

They are built from the index, kept in a local folder, published in the store and pulled from it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import find_dataset
from chunkstore.errors import AlreadyExists, Denied, StoreFull
from chunkstore.object_keys import put_snapshot_key, snapshot_key, snapshot_prefix
from chunkstore.stores.object_store import ObjectStore
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import SnapshotNotFound
from metadata import keys
from metadata.dataset_state import indexed_dataset, read_state
from metadata.errors import (
    DatasetNotFound,
    IndexBehind,
    RecordCorrupt,
    SnapshotRefused,
    SnapshotStale,
)
from metadata.kernel_image_file import remove_with_images
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.records import DatasetState
from metadata.snapshot import Snapshot
from metadata.snapshot_builder import build_snapshot
from metadata.snapshot_folder import SUFFIX, file_name
from metadata.snapshot_folder import publish as new_file
from metadata.snapshot_format import MAX_HEADER_BYTES, SnapshotHeader, decode_header

_log = logging.getLogger(__name__)
_COPY_BYTES = 8 << 20
_SCANS = 2
_SHORTEST_HASH: Final = 6
"""Digits of the shortest abbreviated hash; fewer digits are a generation."""
_ID: Final = re.compile(r"[0-9]{1,16}-[0-9a-f]{32}")  # a folder on a disk collects foreign files


@dataclass(frozen=True, slots=True)
class PublishedSnapshot:
    """A snapshot in the object store."""

    snapshot_id: str
    """`<generation>-<hash of the whole file>`."""
    size_bytes: int

    @property
    def generation(self) -> int:
        return generation_of(self.snapshot_id)


def build(dataset: Dataset, folder: Path, progress: Callable[[int], None] | None = None) -> Path:
    """Write the dataset's newest state as a snapshot file into `folder`; return its path.

    The folder is created with mode 0700. The snapshot comes from a scan of the index, if no commit
    was applied meanwhile. After two such scans, or if the index is damaged, it comes from commits
    and chunk heads alone.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_SCANS):
        before = dataset.catch_up()
        try:
            path = _write(dataset.namespace, before, folder, progress)
        except RecordCorrupt as error:
            if _totals(dataset) == before:
                _log.warning(
                    "the index of %s is damaged (%s); rebuilt this snapshot from the store",
                    dataset.ref.name,
                    error,
                )
                break
            continue  # the scan saw half a commit
        if _totals(dataset) == before:
            return path
        path.unlink()
    replayed = Namespace(MemoryStore(), dataset.ref)
    return _write(replayed, replayed.catch_up(dataset.log, dataset.reader), folder, progress)


def create(
    dataset: Dataset,
    folder: Path,
    *,
    publish: bool = True,
    progress: Callable[[int], None] | None = None,
    unpublished: Callable[[str], None] | None = None,
) -> Path:
    """Build a snapshot and, by default, publish it in the object store.

    Mounts without an index use published snapshots. If a put has published the same snapshot, no
    later put deletes it any more (`put_snapshots`). A caller that only reads gives `unpublished`:
    if the store takes no snapshot, since it may only be read or is full, it is called with a
    message, and the snapshot stays on this machine. Otherwise `Denied` or `StoreFull` is raised.
    """
    path = build(dataset, folder, progress)
    if not publish:
        return path
    try:
        snapshot_id = publish_snapshot(dataset.store, path)
        dataset.store.delete(put_snapshot_key(dataset.ref.name, snapshot_id))
    except (Denied, StoreFull) as error:
        if unpublished is None:
            raise
        unpublished(
            f"cannot publish the snapshot, which stays on this machine: {str(error).split(';')[0]}"
        )
    return path


def publish_snapshot(store: ObjectStore, path: Path) -> str:
    """Store a snapshot file under its dataset; return its id.

    Does nothing if it is published already. Raises `DatasetNotFound` if the dataset was removed.
    """
    return publish_once(store, path)[0]


def publish_once(store: ObjectStore, path: Path) -> tuple[str, bool]:
    """Return what `publish_snapshot` does, and whether the snapshot was not published already."""
    with Snapshot.open(path) as snapshot:
        dataset, snapshot_id = snapshot.dataset, snapshot.id
    key = snapshot_key(dataset.name, snapshot_id)
    try:
        store.create(key, _FileParts(path))
    except AlreadyExists:
        return snapshot_id, False
    if find_dataset(store, dataset.name) != dataset:  # mounts of the next one would take it
        store.delete(key)
        raise DatasetNotFound(f"dataset {dataset.name!r} has been removed")
    return snapshot_id, True


def list_published(store: ObjectStore, name: str) -> list[PublishedSnapshot]:
    """Return the dataset's snapshots in the store, oldest first."""
    found = [
        PublishedSnapshot(snapshot_id, info.size_bytes)
        for info in store.list(snapshot_prefix(name))
        if _ID.fullmatch(snapshot_id := info.key.rpartition("/")[2])
    ]
    return sorted(found, key=lambda snapshot: (snapshot.generation, snapshot.snapshot_id))


def published_header(store: ObjectStore, name: str, published: PublishedSnapshot) -> SnapshotHeader:
    """Return the header of a snapshot in the store; costs a read of 4 KiB.

    Raises `SnapshotRefused` if the header is damaged, and `NotFound`.
    """
    start = store.get_range(snapshot_key(name, published.snapshot_id), 0, MAX_HEADER_BYTES)
    return decode_header(start, published.size_bytes)


def id_of(path: Path) -> str:
    """Return the id in the name of a local snapshot file, `<dataset>-<generation>-<hash>`."""
    return "-".join(path.stem.rsplit("-", 2)[1:])


def generation_of(snapshot_id: str) -> int:
    """Return the generation at the start of an id; 0 if there is none."""
    text = snapshot_id.partition("-")[0]
    return int(text) if text.isdecimal() else 0


def is_called(snapshot_id: str, which: str) -> bool:
    """Return True if `which` is the beginning of the id or of its hash, or its generation.

    `2` is generation 2, and not the start of 25.
    """
    if "-" in which:
        return snapshot_id.startswith(which)
    if len(which) >= _SHORTEST_HASH and snapshot_id.partition("-")[2].startswith(which):
        return True
    return which.isdecimal() and generation_of(snapshot_id) == int(which)


def remove_local(folder: Path, dataset: DatasetRef) -> int:
    """Delete a removed dataset's snapshot files on this machine, with their images; count them.

    A file that cannot be read stays: it may be another dataset's of the name.
    """
    found = [path for path in list_local(folder, dataset.name) if _dataset_id(path) == dataset.id]
    for path in found:
        remove_with_images(path)
    return len(found)


def list_local(folder: Path, name: str, dataset_id: bytes | None = None) -> list[Path]:
    """Return the dataset's snapshot files in a local folder, oldest first.

    With an id, the files of former datasets of the name are left out. A file that cannot be read
    stays in the list: opening it reports what is wrong with it.
    """
    if not os.path.isdir(folder):  # also if it is in another user's home
        return []
    found = [
        path
        for path in folder.iterdir()
        if path.suffix == SUFFIX and path.stem.rpartition("-")[0].rpartition("-")[0] == name
    ]
    if dataset_id is not None:
        found = [path for path in found if _dataset_id(path) in (dataset_id, None)]
    return sorted(found, key=lambda path: generation_of(id_of(path)))


def pull(store: ObjectStore, name: str, which: str | None, folder: Path) -> Path:
    """Pull a published snapshot into `folder` and verify it.

    `which` is as for `is_called`, or None for the newest. A damaged download is deleted and
    refused. A file that is present already is verified and used, or replaced if it is damaged.
    Raises `SnapshotNotFound` and `SnapshotRefused`.
    """
    chosen = _choose(list_published(store, name), name, which)
    path = folder / file_name(name, chosen.snapshot_id)
    if not _is_sound(path, name, chosen.snapshot_id):
        with new_file(folder) as (file, finish):
            _download(store, snapshot_key(name, chosen.snapshot_id), chosen.size_bytes, file)
            _verify(Path(file.name), name, chosen.snapshot_id)
            finish(path.name)
    return path


def find_newer(shown: Snapshot, folder: Path, store: ObjectStore) -> Snapshot | None:
    """Return the newest snapshot of the same dataset and a later generation, open.

    The result is None if there is none.

    It comes from `folder`, or is pulled into it if a published one is newer than all files there.
    """
    name = shown.dataset.name
    local = list_local(folder, name, shown.dataset.id)
    published = list_published(store, name)
    generation = max([shown.generation, *(generation_of(id_of(path)) for path in local)])
    if published and published[-1].generation > generation:
        return Snapshot.open(pull(store, name, published[-1].snapshot_id, folder))
    return Snapshot.open(local[-1]) if generation > shown.generation else None


def check_fresh(snapshot: Snapshot, index: KeyValueStore) -> None:
    """Raise `SnapshotStale` unless the snapshot has the dataset's generation and update timestamp.

    Costs two gets.
    """
    name = snapshot.dataset.name
    known = indexed_dataset(index, name)
    if known is None:
        raise IndexBehind(f"the index does not know dataset {name}: check --index")
    if known.id != snapshot.dataset.id:
        raise SnapshotStale(
            f"the snapshot belongs to a removed dataset {name}: create a new one with --refresh"
        )
    state = read_state(index, known.id, keys.APPLIED)
    if (state.generation, state.updated_ns) != (snapshot.generation, snapshot.updated_ns):
        raise SnapshotStale(
            f"the snapshot of {name} is of generation {snapshot.generation}, but the dataset is at "
            f"{state.generation}: create a new one with --refresh, or name the snapshot to use it"
        )


def _totals(dataset: Dataset) -> DatasetState:
    """Return the totals of the index.

    A commit changes them before any of its entries, while the applied generation is put last.
    """
    return read_state(dataset.index, dataset.ref.id, keys.TOTALS)


def _write(
    namespace: Namespace, state: DatasetState, folder: Path, progress: Callable[[int], None] | None
) -> Path:
    return build_snapshot(
        namespace.dataset,
        state,
        namespace.root(),
        namespace.walk(),
        namespace.chunks(),
        folder,
        progress=progress,
    )


def _choose(published: list[PublishedSnapshot], name: str, which: str | None) -> PublishedSnapshot:
    if which is not None:
        published = [s for s in published if is_called(s.snapshot_id, which)]
    if not published:
        wanted = "published snapshot" if which is None else f"snapshot {which}"
        raise SnapshotNotFound(
            f"there is no {wanted} of {name}",
            f"see `dlcmd snapshot ls {name}`, or create one with `dlcmd snapshot create {name}`",
        )
    return published[-1]


def _download(store: ObjectStore, key: str, size: int, file: IO[bytes]) -> None:
    for at in range(0, size, _COPY_BYTES):
        file.write(store.get_range(key, at, _COPY_BYTES))
    file.flush()


def _is_sound(path: Path, name: str, snapshot_id: str) -> bool:
    try:
        _verify(path, name, snapshot_id)
    except (FileNotFoundError, SnapshotRefused):
        return False
    return True


def _verify(path: Path, name: str, snapshot_id: str) -> None:
    Snapshot.verify(path)
    with Snapshot.open(path) as snapshot:
        if (snapshot.dataset.name, snapshot.id) != (name, snapshot_id):
            raise SnapshotRefused(
                f"{file_name(name, snapshot_id)} holds snapshot {snapshot.id} of "
                f"{snapshot.dataset.name}, not {snapshot_id} of {name}"
            )


def _dataset_id(path: Path) -> bytes | None:
    try:
        with Snapshot.open(path) as snapshot:
            return snapshot.dataset.id
    except (OSError, SnapshotRefused):
        return None


@dataclass(frozen=True, slots=True)
class _FileParts:
    """A local file as the parts of an object; may be iterated again."""

    path: Path

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            while part := file.read(_COPY_BYTES):
                yield part

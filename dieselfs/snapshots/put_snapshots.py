"""The snapshot that a put publishes when it ends, and the earlier ones that it replaces.

A mount without an index shows the newest published snapshot, so a put publishes one. A dataset that
is put to every day would collect one a day, and each keeps its chunks from purge. So a put marks
what it publishes (`chunkstore.object_keys.put_snapshot_key`), and a later put deletes marked
snapshots that nobody uses (docs/decisions/0020). Snapshots that a person made have no mark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.complete_listings import check_commits_listed
from chunkstore.errors import AlreadyExists, ChunkStoreError
from chunkstore.leases import holding, read_leases
from chunkstore.object_keys import put_snapshot_key, put_snapshots_prefix, snapshot_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import current, read_tags
from dieselfs.dataset.dataset import Dataset
from dieselfs.snapshots.lifecycle import (
    build,
    generation_of,
    id_of,
    list_local,
    list_published,
    publish_once,
)
from metadata.kernel_image_file import remove_with_images
from metadata.records import DatasetState
from metadata.snapshot_folder import file_name

log = logging.getLogger(__name__)

KEPT: Final = 2
"""The newest snapshots of puts that stay.

The last but one stays for a mount that is downloading it while the put ends.
"""
_MARK: Final = b"a put published this snapshot, and a later put may delete it\n"


@dataclass(frozen=True, slots=True)
class PutSnapshot:
    """The snapshot that a put published."""

    snapshot_id: str
    size_bytes: int
    elapsed_s: float
    """The time that it took to build, to publish, and to delete earlier ones."""
    is_new: bool = True
    """False if the dataset had not changed since the newest published snapshot."""
    deleted: tuple[str, ...] = ()
    """The ids of the snapshots of earlier puts that it replaced."""


def publish_put(
    dataset: Dataset,
    folder: Path,
    progress: Callable[[int], None] | None = None,
    ready: Callable[[DatasetState], Path | None] = lambda state: None,
) -> PutSnapshot:
    """Publish a snapshot of the dataset as it is now, unless the newest one shows it already.

    `ready` returns the snapshot of a state of the index, if the put has built it already.
    Raises the errors of store and index, and `OSError`; whatever was put stays. Costs a listing if
    there is nothing to do. Otherwise it costs two creates, one more listing and, unless it is
    ready, the snapshot: a scan of the index (2 µs a file) and the build (2 µs and 76 bytes a file).
    If earlier puts left more than `KEPT` snapshots, it also reads tags and leases.
    """
    began_s = time.monotonic()
    store, name = dataset.store, dataset.ref.name
    state = dataset.catch_up()
    generation = state.generation
    published = list_published(store, name)
    if published and published[-1].generation >= generation:
        newest = published[-1]
        elapsed_s = time.monotonic() - began_s
        return PutSnapshot(newest.snapshot_id, newest.size_bytes, elapsed_s, is_new=False)
    path = ready(state) or _present(dataset, folder, generation) or build(dataset, folder, progress)
    # The mark comes first. After a crash between the two a mark without a snapshot is harmless, and
    # a snapshot without its mark would stay for good.
    with suppress(AlreadyExists):
        store.create(put_snapshot_key(name, id_of(path)), [_MARK])
    size_bytes = path.stat().st_size  # it is deleted with the snapshot if later puts have ended
    snapshot_id, is_own = publish_once(store, path)
    deleted = _delete_earlier(store, dataset.ref, folder, KEPT, snapshot_id if is_own else None)
    return PutSnapshot(
        snapshot_id,
        size_bytes,
        time.monotonic() - began_s,
        deleted=tuple(deleted),
    )


def _present(dataset: Dataset, folder: Path, generation: int) -> Path | None:
    """Return the snapshot of a generation that a mount has made meanwhile."""
    local = list_local(folder, dataset.ref.name, dataset.ref.id)
    return local[-1] if local and generation_of(id_of(local[-1])) == generation else None


def replace_put_snapshots(dataset: Dataset, folder: Path) -> None:
    """Publish a snapshot of the dataset as it is now, and delete all that puts published before.

    Those that a tag or a mount needs stay. The snapshot is built in `folder`. Raises and costs the
    same as `publish_put`.
    """
    shown = publish_put(dataset, folder).snapshot_id
    is_marked = shown in replaceable(dataset.store, dataset.ref.name)
    _delete_earlier(dataset.store, dataset.ref, folder, int(is_marked))


def replaceable(store: ObjectStore, name: str) -> list[str]:
    """Return the ids of the snapshots that puts published, oldest first. One listing."""
    prefix = put_snapshots_prefix(name)
    marked = [info.key.removeprefix(prefix) for info in store.list(prefix)]
    return sorted(marked, key=lambda snapshot_id: (generation_of(snapshot_id), snapshot_id))


def _mark_again(store: ObjectStore, name: str, snapshot_id: str, marked: Sequence[str]) -> None:
    """Mark a snapshot again if later puts have ended while it was being published.

    They have deleted its mark, and could not delete the snapshot, which was not there yet. A person
    who wants it (`lifecycle.create`) deletes the mark too, but sees no later snapshots.
    """
    later = [each for each in marked if generation_of(each) > generation_of(snapshot_id)]
    if snapshot_id not in marked and len(later) >= KEPT:
        with suppress(AlreadyExists):
            store.create(put_snapshot_key(name, snapshot_id), [_MARK])


def _delete_earlier(
    store: ObjectStore, dataset: DatasetRef, folder: Path, kept: int, own: str | None = None
) -> Sequence[str]:
    """Delete what puts published, except for the newest `kept`, and what a tag or a mount needs.

    `own` is what this put has just published. A failure is only logged: the next put tries again.
    """
    try:
        marked = replaceable(store, dataset.name)
        if own is not None:
            _mark_again(store, dataset.name, own, marked)
        earlier = marked[: len(marked) - kept]
        if not earlier:
            return ()
        check_commits_listed(store, dataset.name)
        tags, leases = read_tags(store, dataset), read_leases(store, dataset)
        if tags.damaged or leases.damaged:  # they could mean any snapshot
            return ()
        tagged = {tag.snapshot_id for tag in current(tags, dataset)}
        leased = {
            g for lease in holding(leases, dataset, time.time_ns()) for g in lease.generations
        }
        free = [
            snapshot_id
            for snapshot_id in earlier
            if snapshot_id not in tagged and generation_of(snapshot_id) not in leased
        ]
        for snapshot_id in free:
            store.delete(snapshot_key(dataset.name, snapshot_id))
            store.delete(put_snapshot_key(dataset.name, snapshot_id))
            remove_with_images(folder / file_name(dataset.name, snapshot_id))
    except (ChunkStoreError, OSError) as error:
        log.warning("cannot delete the snapshots of earlier puts of %s: %s", dataset.name, error)
        return ()
    return free

"""Deletion of the garbage that `find_garbage` found, except what has become needed since.

Before every thousand objects the pins and the new commits are read again. Between that check and
the last deletion after it a late commit could still name an uncommitted chunk that is older than
the grace period. Its writer checks for such chunks right before it commits
(`chunkstore.group_commit`), so both events would have to fall into the same second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from chunkstore.commit_log import CommitLog, find_dataset
from chunkstore.leases import read_leases
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.temporary_files import with_temporary_files
from chunkstore.tags import current, read_tags
from dieselfs.errors import Conflict
from dieselfs.housekeeping.garbage import Garbage, GarbageItem, GarbageKind
from dieselfs.housekeeping.retention import may_be_deleted, pins_of
from dieselfs.snapshots.lifecycle import list_published
from dieselfs.snapshots.listed_snapshots import check_snapshots_listed
from metadata.kernel_image_file import remove_with_images

_LOOKED_AT_ONCE: Final = 1000
_DELETED_AT_ONCE: Final = 16


def delete_garbage(
    store: ObjectStore,
    garbage: Garbage,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
    deleted: Callable[[GarbageItem], None] = lambda item: None,
) -> list[GarbageItem]:
    """Delete the garbage and return what was deleted; `deleted` is called with each item.

    Raises `Conflict` if the dataset was removed meanwhile. Sends one delete for each object, 16 at
    a time. An error of the store ends the call; earlier deletions stay.
    """

    def delete(item: GarbageItem) -> GarbageItem:
        store.delete(item.key)
        return item

    done: list[GarbageItem] = []
    with ThreadPoolExecutor(_DELETED_AT_ONCE, "gc") as pool:
        for at in range(0, len(garbage.removable), _LOOKED_AT_ONCE):
            batch = garbage.removable[at : at + _LOOKED_AT_ONCE]
            for item in pool.map(delete, _still_garbage(store, garbage, batch, clock_ns())):
                done.append(item)
                deleted(item)
    return done


def delete_outside(store: ObjectStore, item: GarbageItem) -> None:
    """Delete a temporary or a local file; do nothing when it is gone."""
    offered = with_temporary_files(store)
    if item.kind is GarbageKind.LOCAL_FILE:
        remove_with_images(Path(item.key))
    elif offered is not None:
        offered.remove_temporary_file(item.key)


def _still_garbage(
    store: ObjectStore, garbage: Garbage, batch: Sequence[GarbageItem], now_ns: int
) -> Iterator[GarbageItem]:
    dataset = garbage.dataset
    if find_dataset(store, dataset.name) != dataset:
        raise Conflict(
            f"dataset {dataset.name} was removed meanwhile", "run the same command again"
        )
    published = list_published(store, dataset.name)
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    check_snapshots_listed(store, dataset.name, published, current(tags, dataset))
    pins = pins_of(dataset, published, tags, leases, now_ns)
    pinned = pins_of(dataset, (), tags, leases, now_ns).generations
    committed = {
        chunk_key(dataset.name, ref.id)
        for commit in CommitLog(store, dataset).since(garbage.generation)
        for ref in commit.added
    }
    for item in batch:
        match item.kind:
            case GarbageKind.UNCOMMITTED if item.key in committed:
                continue
            case GarbageKind.RETIRED if item.chunk is None or not may_be_deleted(
                item.chunk, pins, garbage.grace_s, now_ns
            ):
                continue
            case GarbageKind.DANGLING_SNAPSHOT if _generation(item) in pinned:
                continue
        yield item


def _generation(item: GarbageItem) -> int:
    """Return the generation in a snapshot's key, which ends with `<generation>-<hash>`."""
    return int(item.key.rpartition("/")[2].partition("-")[0])

"""Garbage outside of datasets.

It is the temporary files that killed writers left in a store, and the snapshot files of this
machine that nothing can use. No commit names either, so only their age decides, by the time of the
last write.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.temporary_files import with_temporary_files
from dieselfs.housekeeping.garbage_items import YOUNG, GarbageItem, GarbageKind
from dieselfs.snapshots.lifecycle import list_local
from metadata.errors import SnapshotRefused
from metadata.kernel_image_file import remove_with_images
from metadata.snapshot import Snapshot
from metadata.snapshot_folder import INCOMPLETE


def temporary_files(store: ObjectStore, grace_s: float) -> list[GarbageItem]:
    """Return the temporary files of a store that can have any."""
    offered = with_temporary_files(store)
    found = offered.temporary_files(grace_s) if offered is not None else ()
    return [
        GarbageItem(GarbageKind.TEMPORARY, info.key, info.size_bytes, "its writer has ended")
        for info in found
    ]


def delete_outside(store: ObjectStore, item: GarbageItem) -> None:
    """Delete a temporary or a local file; do nothing when it is gone."""
    offered = with_temporary_files(store)
    if item.kind is GarbageKind.LOCAL_FILE:
        remove_with_images(Path(item.key))
    elif offered is not None:
        offered.remove_temporary_file(item.key)


def former_snapshots(
    folder: Path, name: str, dataset_id: bytes, grace_s: float, now_s: float
) -> list[GarbageItem]:
    """Return local snapshot files of other datasets of this name.

    Such a dataset had the name before, or has it in another store.
    """
    found = []
    for path in list_local(folder, name):
        with suppress(OSError, SnapshotRefused), Snapshot.open(path) as snapshot:
            if snapshot.dataset.id != dataset_id:
                found.append(path)
    return _judged(found, "it belongs to another dataset of this name", grace_s, now_s)


def incomplete_snapshots(folder: Path, grace_s: float, now_s: float) -> list[GarbageItem]:
    """Return the files that killed pulls and creations left in the folder of local snapshots."""
    found = list(folder.glob(f"{INCOMPLETE}*"))
    return _judged(found, "its writer has ended", grace_s, now_s)


def _judged(paths: Iterable[Path], reason: str, grace_s: float, now_s: float) -> list[GarbageItem]:
    items = []
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            found = path.stat()
            kept = YOUNG if now_s - found.st_mtime < grace_s else ""
            items.append(
                GarbageItem(GarbageKind.LOCAL_FILE, str(path), found.st_size, reason, kept)
            )
    return items

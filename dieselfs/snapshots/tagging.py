"""Names of snapshots: the meaning of a tag, an id or its beginning; and the creation of tags."""

from __future__ import annotations

from pathlib import Path

from chunkstore import tags
from chunkstore.commit_log import newest_generation
from chunkstore.errors import NotFound
from chunkstore.object_keys import snapshot_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import Tag
from dieselfs.dataset.dataset import existing_dataset
from dieselfs.errors import SnapshotNotFound, UsageError
from dieselfs.snapshots.lifecycle import (
    generation_of,
    id_of,
    is_called,
    list_local,
    list_published,
    publish_snapshot,
)
from metadata.errors import SnapshotStale


def resolved(which: str, dataset: str, store: ObjectStore) -> str:
    """Return `which` itself if it has the form of an id, or else the id that the tag `which` names.

    The form of an id is an id, its beginning, or a generation. Raises `SnapshotNotFound`, or
    `Corrupt` if the tag cannot be read. A tag cannot look like an id, so neither hides the other.
    """
    if tags.is_like_an_id(which):
        return which
    try:
        return tags.resolve(store, dataset, which).snapshot_id
    except (NotFound, ValueError):
        raise SnapshotNotFound(
            f"{dataset} has no snapshot or tag {which!r}", f"see `dlcmd snapshot ls {dataset}`"
        ) from None


def tag_snapshot(
    store: ObjectStore, dataset: str, which: str | None, tag: str, folder: Path
) -> Tag:
    """Tag the snapshot that `which` names: an id or its beginning, a generation, or another tag.

    Without `which` it is the newest one, if that is as new as the dataset. A snapshot that only
    this machine has is published: a tag is for all users. Raises `UsageError` for an illegal tag,
    `SnapshotNotFound`, and without `which` `SnapshotStale`.
    """
    try:
        tags.check_tag_name(tag)
    except ValueError as error:
        raise UsageError(str(error)) from error
    ref = existing_dataset(store, dataset)
    wanted = None if which is None else resolved(which, dataset, store)
    published = [snapshot.snapshot_id for snapshot in list_published(store, dataset)]
    files = {id_of(path): path for path in list_local(folder, dataset, ref.id)}
    known = sorted(
        {i for i in [*published, *files] if wanted is None or is_called(i, wanted)},
        key=generation_of,
    )
    if not known:
        raise SnapshotNotFound(
            f"there is no snapshot {which or ''} of {dataset}".replace("  ", " "),
            f"create one with `dlcmd snapshot create {dataset}`",
        )
    chosen = known[-1]
    if which is None and generation_of(chosen) < newest_generation(store, dataset):
        raise SnapshotStale(
            f"the newest snapshot of {dataset} is of generation {generation_of(chosen)}, but the "
            "dataset has changed since: "
            f"create a new one with `dlcmd snapshot create {dataset}`, or name this snapshot: "
            f"{dataset}@{generation_of(chosen)}"
        )
    if chosen not in published:
        publish_snapshot(store, files[chosen])
    made = tags.tag(store, dataset, tag, chosen)
    try:
        store.stat(snapshot_key(dataset, chosen))
    except NotFound:  # pruned meanwhile: a later prune sees the tag
        if chosen not in files:
            raise SnapshotNotFound(
                f"snapshot {chosen} of {dataset} was removed meanwhile",
                f"remove the tag with `dlcmd snapshot untag {dataset} {tag}`, or tag another "
                "snapshot",
            ) from None
        publish_snapshot(store, files[chosen])
    return made


def untag_snapshot(store: ObjectStore, dataset: str, tag: str) -> None:
    """Remove a tag, also one that cannot be read; the snapshot stays.

    Raises `UsageError` for an illegal tag, and `SnapshotNotFound`.
    """
    try:
        tags.untag(store, dataset, tag)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except NotFound as error:
        raise SnapshotNotFound(str(error)) from error

"""A check that the listing of a dataset's snapshots has those that tags and puts name."""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.complete_listings import check_listed
from chunkstore.object_keys import snapshot_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import Tag
from dieselfs.snapshots.lifecycle import PublishedSnapshot, list_published
from dieselfs.snapshots.put_snapshots import replaceable


def check_snapshots_listed(
    store: ObjectStore, name: str, published: Iterable[PublishedSnapshot], tags: Iterable[Tag]
) -> None:
    """Raise `Untrusted` if `published` lacks a snapshot that is in the store.

    Looked for are those of tags, and those that puts have published. One that is missing may have
    been published just now, so the snapshots are listed again. Costs one listing, or two, and a
    request for each snapshot that is not listed.
    """
    named = {*replaceable(store, name), *(tag.snapshot_id for tag in tags)}
    if lacking := named - _ids(published):
        lacking -= _ids(list_published(store, name))
        check_listed(store, (snapshot_key(name, one) for one in sorted(lacking)))


def _ids(published: Iterable[PublishedSnapshot]) -> set[str]:
    return {snapshot.snapshot_id for snapshot in published}

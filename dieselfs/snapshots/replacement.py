"""The check of a mount that begins beside a purge: are the chunks of its snapshot still there?

A purge may replace the snapshot that a put published. It deletes the snapshot, then looks for
leases, and then deletes retired chunks that nothing pins. So a mount first writes its lease and
then looks for its snapshot: if that is there, each later purge sees the lease.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.commit_log import CommitLog
from chunkstore.object_keys import chunk_key, snapshot_key
from chunkstore.stores.object_store import ObjectStore, exists
from dieselfs.errors import Conflict
from metadata.snapshot import Snapshot

_REQUESTS_AT_ONCE: Final = 16


def check_not_replaced(store: ObjectStore, snapshot: Snapshot) -> None:
    """Raise `Conflict` if a purge has deleted chunks of the snapshot. See `is_replaced`."""
    if is_replaced(store, snapshot):
        raise Conflict(
            f"a purge has deleted snapshot {snapshot.id} of {snapshot.dataset.name} and chunks of "
            "it",
            "run the same command again: it takes a newer snapshot",
        )


def is_replaced(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Return whether the snapshot is not published any more, and the store lacks chunks of it.

    Call it once a lease names its generation. Costs one stat if the snapshot is published, else a
    get for each later commit, and a stat for each of the snapshot's chunks that these retired.
    """
    name = snapshot.dataset.name
    if exists(store, snapshot_key(name, snapshot.id)):
        return False
    later = CommitLog(store, snapshot.dataset).since(snapshot.generation)
    retired = {chunk for commit in later for chunk in commit.retired}
    needed = retired and retired.intersection(map(ChunkId, _chunks(snapshot)))
    return not _all_exist(store, [chunk_key(name, chunk) for chunk in needed])


def _chunks(snapshot: Snapshot) -> list[bytes]:
    return [chunk.tobytes() for chunk in snapshot.columns.chunk_id]


def _all_exist(store: ObjectStore, keys: Collection[str]) -> bool:
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "chunk-check") as pool:
        return all(pool.map(lambda key: exists(store, key), keys))

"""The line that a new mount prints if the store has newer commits than the mounted snapshot."""

from __future__ import annotations

import os
from pathlib import Path

from chunkstore.errors import ChunkStoreError
from dieselfs.assembly import open_configured_store
from dieselfs.config import Config
from dieselfs.snapshots.freshness import newest_since, stale_text
from metadata.snapshot import Snapshot


def stale_note(config: Config, snapshot: Snapshot, mountpoint: Path) -> str:
    """Return the line; empty if the snapshot is the newest, or the store does not answer.

    Costs one stat of the store if there is nothing newer.
    """
    try:
        store = open_configured_store(config, None)
        newest = newest_since(store, snapshot.dataset, snapshot.generation)
    except ChunkStoreError:  # the mount itself has said so, and looks again later
        return ""
    if newest <= snapshot.generation:
        return ""
    where = os.fspath(mountpoint)
    return stale_text(snapshot.dataset, snapshot.generation, newest, mountpoint=where)

"""The checks, before a mount, that its store is the right one, answers, and has nothing newer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from dieselfs.assembly import open_configured_store
from dieselfs.config import Config
from dieselfs.errors import MountError, SsdUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.config import Setting
    from metadata.snapshot import Snapshot

_CHUNKS_LOOKED_FOR: Final = 8
_STORE_ANSWERS_S: Final = 2.0


def check_store(
    config: Config,
    snapshot: Snapshot,
    ssd: SsdSettings | None,
    patient: ObjectStore | None = None,
) -> str:
    """Check the store, and return a warning if it does not answer; the result is empty if it does.

    A store that does not answer is accepted if the SSD has some of the dataset, which can be read
    without it. Otherwise the check asks `patient`, a store with more patience. Raises `MountError`
    for the wrong store, and `Unavailable`.
    """
    from chunkstore.errors import Unavailable

    where = config.store
    try:
        _check_chunks(open_configured_store(config, None), snapshot, where)
    except Unavailable:
        cached = None if ssd is None else _cached(ssd, snapshot)
        if cached:
            return (
                "the store does not answer: until it does, only what the SSD has can be read, "
                f"{cached}"
            )
        if patient is None:
            raise
        _check_chunks(patient, snapshot, where)
    return ""


def stale_note(config: Config, snapshot: Snapshot, mountpoint: Path) -> str:
    """Return the line that says that the store has newer commits than the snapshot.

    The line is empty if the snapshot is the newest, or the store does not answer. Costs one stat of
    the store if there is nothing newer.
    """
    from chunkstore.errors import ChunkStoreError
    from dieselfs.snapshots.freshness import newest_since, stale_text

    try:
        store = open_configured_store(config, None)
        newest = newest_since(store, snapshot.dataset, snapshot.generation)
    except ChunkStoreError:  # the mount itself has said so, and looks again later
        return ""
    if newest <= snapshot.generation:
        return ""
    where = os.fspath(mountpoint)
    return stale_text(snapshot.dataset, snapshot.generation, newest, mountpoint=where)


def quick_stale_note(config: Config, snapshot: Snapshot, mountpoint: Path) -> str:
    """Return `stale_note` if the store answers within 2 s, else nothing.

    A mount that does without the store does not wait for one that is down.
    """
    found: list[str] = []

    def look() -> None:
        found.append(stale_note(config, snapshot, mountpoint))

    thread = threading.Thread(target=look, name="freshness", daemon=True)
    thread.start()
    thread.join(_STORE_ANSWERS_S)
    return found[0] if found else ""


def _cached(ssd: SsdSettings, snapshot: Snapshot) -> str:
    """Return how much of the dataset is on the SSD, as text; empty if nothing is."""
    from dieselfs.cache.ssd.settings import open_tier
    from dieselfs.cache.warmup.ssd_warmup import warmth
    from dieselfs.cache.warmup.wanted_chunks import wanted_chunks

    try:
        found = warmth(open_tier(ssd), snapshot.dataset, wanted_chunks(snapshot))
    except SsdUnavailable:
        return ""
    return (
        f"{found.cached_chunks:,} of {found.chunks:,} chunk{'' if found.chunks == 1 else 's'}"
        if found.cached_chunks
        else ""
    )


def _check_chunks(store: ObjectStore, snapshot: Snapshot, where: Setting) -> None:
    """Raise `MountError` if the store has none of the chunks that are looked for.

    A wrong --store would otherwise show only at the first read. A mount is possible although some
    chunks are lost.
    """
    from chunkstore.errors import NotFound
    from chunkstore.object_keys import chunk_key

    count = snapshot.chunk_count
    error: Exception | None = None
    for number in range(0, count, -(-count // _CHUNKS_LOOKED_FOR) or 1):
        try:
            store.stat(chunk_key(snapshot.dataset.name, snapshot.chunk(number).id))
            return
        except NotFound as missing:
            error = missing
    if error is not None:
        raise MountError(
            f"the chunks of {snapshot.dataset.name} are not in the store {where}", "check --store"
        ) from error

"""Garbage among published snapshots.

It is snapshots of former datasets of the name, and those whose chunks were all deleted
legitimately. A snapshot that lacks only some chunks, or a chunk that no commit retired, is damaged
and no garbage: the rest of it can be read. It is reported and left to `dlcmd fsck`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.errors import NotFound
from chunkstore.object_keys import snapshot_key
from chunkstore.stores.object_store import ObjectStore
from dieselfs.housekeeping.garbage_items import PINNED, YOUNG, GarbageItem, GarbageKind
from dieselfs.recovery.history import History
from dieselfs.snapshots.lifecycle import PublishedSnapshot, published_header
from metadata.errors import SnapshotRefused
from metadata.snapshot_format import SnapshotHeader

_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SnapshotVerdicts:
    """The garbage among the published snapshots."""

    items: tuple[GarbageItem, ...]
    notes: tuple[str, ...]
    """Messages for the user about damaged snapshots."""


def judge_snapshots(
    store: ObjectStore,
    history: History,
    dataset_id: bytes,
    published: Iterable[PublishedSnapshot],
    pinned: frozenset[int],
    oldest_kept_ns: int,
) -> SnapshotVerdicts:
    """Judge the published snapshots.

    `published` must have been listed before `history` was read. `pinned` are the generations of
    tags and leases. A snapshot of a commit after `oldest_kept_ns` stays. Costs two ranged reads for
    each snapshot: a header, and 16 bytes a chunk.
    """
    items: list[GarbageItem] = []
    notes: list[str] = []
    retired = history.retired()
    advice = f"see `dlcmd fsck {history.name}`"
    for snapshot in published:
        try:
            header = published_header(store, history.name, snapshot)
            if header.dataset.id != dataset_id:
                kept = YOUNG if header.updated_ns > oldest_kept_ns else ""
                reason = "it belongs to a removed dataset of this name"
                items.append(_item(history, snapshot, GarbageKind.FORMER_SNAPSHOT, reason, kept))
                continue
            chunks = _chunks(store, history.name, snapshot, header)
        except SnapshotRefused as error:
            notes.append(f"snapshot {snapshot.snapshot_id} is damaged ({error}): {advice}")
            continue
        except NotFound:  # deleted meanwhile
            continue
        missing = [chunk for chunk in chunks if chunk not in history.stored]
        if len(missing) < len(chunks) or any(chunk not in retired for chunk in missing):
            if missing:
                notes.append(
                    f"{len(missing)} of the {len(chunks)} chunks that snapshot "
                    f"{snapshot.snapshot_id} needs are lost: {advice}"
                )
        elif missing:
            kept = PINNED if snapshot.generation in pinned else ""
            kept = kept or (YOUNG if header.updated_ns > oldest_kept_ns else "")
            reason = f"its {len(chunks)} chunks are deleted"
            items.append(_item(history, snapshot, GarbageKind.DANGLING_SNAPSHOT, reason, kept))
    return SnapshotVerdicts(tuple(items), tuple(notes))


def _item(
    history: History, snapshot: PublishedSnapshot, kind: GarbageKind, reason: str, kept: str
) -> GarbageItem:
    key = snapshot_key(history.name, snapshot.snapshot_id)
    return GarbageItem(kind, key, snapshot.size_bytes, reason, kept)


def _chunks(
    store: ObjectStore, name: str, snapshot: PublishedSnapshot, header: SnapshotHeader
) -> list[ChunkId]:
    """Return the chunks that hold a live file of the snapshot."""
    start, size = header.sections["chunk_id"]
    data = bytes(store.get_range(snapshot_key(name, snapshot.snapshot_id), start, size))
    if len(data) != size:
        raise SnapshotRefused("it is shorter than its header says")
    return [ChunkId(data[at : at + _ID_BYTES]) for at in range(0, size, _ID_BYTES)]

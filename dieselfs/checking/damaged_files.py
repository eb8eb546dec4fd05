"""The files of the present state that damaged chunks hit, and the findings about them.

An index that is up to date knows all these files. Otherwise the heads do, for chunks with a sound
one. The content of other chunks is known to the readable rest of the index and to snapshots, newest
first, unless a later commit shows that the path was replaced or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import chunk_key
from chunkstore.paths import split
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.chunk_check import ChunkDamage
from dieselfs.checking.files_hit import indexed_files, snapshot_files
from dieselfs.checking.findings import Finding, SnapshotHit
from dieselfs.checking.head_checks import HeadChecks
from dieselfs.checking.snapshot_check import downloaded
from dieselfs.checking.store_check import ListedDataset
from dieselfs.snapshots.lifecycle import list_local, list_published
from metadata import keys
from metadata.errors import SnapshotRefused
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.kv.memory import MemoryStore
from metadata.rebuild import rebuild
from metadata.rebuild.empty_index import EmptyIndex
from metadata.records import decode_entries
from metadata.snapshot import Snapshot

_ADVICE: Final = (
    "restore this object from a copy of the store; without one, put these files again with "
    "`dlcmd put --checksum`, or delete them with `dlcmd rm`, and retire the chunk with `dlcmd "
    "purge`"
)
_NO_FILES_ADVICE: Final = (
    "no file needs it now: retire it with `dlcmd purge`, or restore it from a copy of the store"
)


def files_by_heads(
    store: ObjectStore,
    index: KeyValueStore,
    stored: ListedDataset,
    damages: Mapping[ChunkId, ChunkDamage],
    heads: HeadChecks,
    local_folder: Path | None,
) -> dict[ChunkId, list[bytes]]:
    """Return `indexed_files(…).by_chunk` as an up-to-date index would give it.

    The cost is one rebuild into memory (some 300 bytes a file). `headless` are the damaged chunks
    without a sound head.
    """
    replayed = MemoryStore()
    rebuild(stored.dataset, stored.history(stored.newest), heads.read, EmptyIndex(replayed))
    found = dict(indexed_files(replayed, stored.dataset, damages).by_chunk)
    unread = {chunk_id: damages[chunk_id] for chunk_id in heads.headless & damages.keys()}
    if unread:
        added = {ref.id: commit.generation for commit in stored.commits for ref in commit.added}
        for chunk_id, paths in _known_elsewhere(store, index, stored, unread, local_folder):
            known = set(found.get(chunk_id, ()))
            known.update(p for p in paths if not _is_later(replayed, stored, p, added[chunk_id]))
            found[chunk_id] = sorted(known)
    return found


def _known_elsewhere(
    store: ObjectStore,
    index: KeyValueStore,
    stored: ListedDataset,
    unread: Mapping[ChunkId, ChunkDamage],
    local_folder: Path | None,
) -> Iterator[tuple[ChunkId, list[bytes]]]:
    yield from indexed_files(index, stored.dataset, unread).by_chunk.items()
    name = stored.dataset.name
    left = set(unread)
    local = list_local(local_folder, name, stored.dataset.id) if local_folder else []
    for path in reversed(local):
        yield from _of_snapshot(path, stored, unread, left)
    for listed in reversed(list_published(store, name)):
        if not left:
            return
        try:
            with downloaded(store, name, listed) as path:
                yield from _of_snapshot(path, stored, unread, left)
        except ChunkStoreError:
            continue


def _of_snapshot(
    path: Path, stored: ListedDataset, unread: Mapping[ChunkId, ChunkDamage], left: set[ChunkId]
) -> Iterator[tuple[ChunkId, list[bytes]]]:
    """Yield a snapshot's files in the chunks of `left`; remove those chunks from `left`.

    Chunks without files in the snapshot stay in `left`.
    """
    try:
        Snapshot.verify(path)
        with Snapshot.open(path) as snapshot:
            if snapshot.dataset != stored.dataset:
                return
            wanted = {chunk_id: unread[chunk_id] for chunk_id in left}
            found = snapshot_files(snapshot, wanted)
    except (OSError, SnapshotRefused):
        return
    left -= found.keys()
    yield from found.items()


def _is_later(replayed: KeyValueStore, stored: ListedDataset, path: bytes, generation: int) -> bool:
    """Return whether a sound chunk has something newer than `generation` about the path.

    It is another version, or a tombstone.
    """
    directory, name = split(path)
    key = keys.files_of(stored.dataset.id, directory)
    value = replayed.get_many([MapFields(key, [name])])[0][0]
    if value is None:
        return False
    row = decode_entries(key, [name], [value])[0]
    return int(row["version"]) >> 1 > generation or bool(int(row["version"]) & 1)


def chunk_findings(
    name: str,
    damages: Mapping[ChunkId, ChunkDamage],
    files: Mapping[ChunkId, list[bytes]],
    snapshots: Mapping[ChunkId, tuple[SnapshotHit, ...]],
) -> list[Finding]:
    """Return a finding for each damaged chunk, in the order of ids."""
    found = []
    for chunk_id in sorted(damages):
        damage = damages[chunk_id]
        hit = tuple(sorted(files.get(chunk_id, ())))
        kept = snapshots.get(chunk_id, ())
        advice = _ADVICE if hit or kept else _NO_FILES_ADVICE
        found.append(
            Finding(
                damage.kind,
                chunk_key(name, chunk_id),
                damage.what,
                advice,
                damaged=True,
                files=hit,
                snapshots=kept,
            )
        )
    return found

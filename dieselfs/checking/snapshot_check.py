"""The check of snapshots, published and on this machine, and of tags.

A snapshot must be sound and of this dataset, and every chunk that it names must be in the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.counted import agreed, counted
from chunkstore.errors import NotFound
from chunkstore.object_keys import snapshot_key, tags_prefix
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import current, read_tags
from dieselfs.checking.chunk_check import ChunkDamage
from dieselfs.checking.files_hit import snapshot_hits
from dieselfs.checking.findings import Finding, FindingKind, Repair, SnapshotHit
from dieselfs.checking.store_check import ListedDataset
from dieselfs.snapshots.lifecycle import PublishedSnapshot, id_of, list_local, list_published
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot

_COPY_BYTES: Final = 8 << 20
_TAG_ADVICE: Final = (
    "set the tag again with `dlcmd snapshot tag`, or remove it with `dlcmd snapshot untag`"
)


@dataclass(frozen=True, slots=True)
class SnapshotCheck:
    """The findings about all snapshots and tags."""

    findings: tuple[Finding, ...]
    published: int
    local: int
    hits: Mapping[ChunkId, tuple[SnapshotHit, ...]]
    """The published snapshots that each damaged chunk hits, oldest first."""


def check_snapshots(
    store: ObjectStore,
    stored: ListedDataset,
    damages: Mapping[ChunkId, ChunkDamage],
    local_folder: Path | None,
) -> SnapshotCheck:
    """Check all snapshots and tags.

    Every published snapshot is read once, to a temporary file; those in `local_folder` are read in
    place. The check costs 1 µs a file besides.
    """
    name = stored.dataset.name
    published = list_published(store, name)
    files = list_local(local_folder, name) if local_folder is not None else []
    local = [_check_local(path, stored) for path in files]
    sound_local = {id_of(path) for path, f in zip(files, local, strict=True) if f is None}
    findings = [finding for finding in local if finding is not None]
    hits: dict[ChunkId, list[SnapshotHit]] = {}
    for listed in published:
        try:
            with downloaded(store, name, listed) as path:
                finding, counts = _check_published(path, listed, stored, damages)
        except NotFound:  # removed since it was listed
            continue
        except SnapshotRefused as error:
            finding, counts = _refused(listed, stored, str(error), sound_local), {}
        if finding is not None:
            findings.append(finding)
        for chunk_id, files_hit in counts.items():
            hits.setdefault(chunk_id, []).append(SnapshotHit(listed.snapshot_id, files_hit))
    findings += _check_tags(store, stored, {listed.snapshot_id for listed in published})
    return SnapshotCheck(
        tuple(findings),
        len(published),
        len(files),
        {chunk_id: tuple(found) for chunk_id, found in hits.items()},
    )


@contextmanager
def downloaded(store: ObjectStore, name: str, listed: PublishedSnapshot) -> Iterator[Path]:
    """Yield a published snapshot as a temporary file, not verified. Raises `NotFound`."""
    with tempfile.NamedTemporaryFile(prefix="dieselfs-check-", suffix=".snapshot") as file:
        for at in range(0, listed.size_bytes, _COPY_BYTES):
            file.write(store.get_range(snapshot_key(name, listed.snapshot_id), at, _COPY_BYTES))
        file.flush()
        yield Path(file.name)


def _check_published(
    path: Path,
    listed: PublishedSnapshot,
    stored: ListedDataset,
    damages: Mapping[ChunkId, ChunkDamage],
) -> tuple[Finding | None, dict[ChunkId, int]]:
    """Return what is wrong with a snapshot, and how many of its files each damaged chunk hits.

    Raises `SnapshotRefused` if the snapshot cannot be trusted.
    """
    Snapshot.verify(path)
    key = snapshot_key(stored.dataset.name, listed.snapshot_id)
    with Snapshot.open(path) as snapshot:
        if snapshot.dataset != stored.dataset:
            what = (
                "it belongs to another dataset, or to a removed one of the same name "
                f"({snapshot.dataset.name}@{snapshot.id})"
            )
            return _finding(
                FindingKind.SNAPSHOT_FOREIGN, key, what, Repair.DELETE_SNAPSHOT, False
            ), {}
        if snapshot.id != listed.snapshot_id:
            raise SnapshotRefused(f"the object holds snapshot {snapshot.id}")
        lost, files = _lost_chunks(snapshot, stored)
        finding = None
        if lost:
            what = (
                f"{lost:,} of its chunks {agreed(lost, 'were')} retired and deleted: {files:,} of "
                f"its {counted(snapshot.file_count, 'file')} cannot be read"
            )
            finding = Finding(
                FindingKind.SNAPSHOT_DANGLING,
                key,
                what,
                "restore the chunks from a copy of the store, or `dlcmd fsck --repair` deletes "
                "the snapshot",
                damaged=True,
                repair=Repair.DELETE_SNAPSHOT,
                snapshots=(SnapshotHit(snapshot.id, files),),
            )
        return finding, snapshot_hits(snapshot, damages)


def _refused(
    listed: PublishedSnapshot, stored: ListedDataset, reason: str, sound_local: set[str]
) -> Finding:
    key = snapshot_key(stored.dataset.name, listed.snapshot_id)
    if listed.snapshot_id in sound_local:
        return _finding(FindingKind.SNAPSHOT_DAMAGED, key, reason, Repair.REPUBLISH_SNAPSHOT, False)
    if listed.generation == stored.newest and not stored.broken:
        return _finding(FindingKind.SNAPSHOT_DAMAGED, key, reason, Repair.REPLACE_SNAPSHOT, False)
    return _finding(FindingKind.SNAPSHOT_DAMAGED, key, reason, Repair.DELETE_SNAPSHOT, True)


def _finding(kind: FindingKind, where: str, what: str, repair: Repair, damaged: bool) -> Finding:
    advice = f"`dlcmd fsck --repair` will {repair.value}"
    return Finding(kind, where, what, advice, damaged, repair)


def _check_local(path: Path, stored: ListedDataset) -> Finding | None:
    try:
        Snapshot.verify(path)
        with Snapshot.open(path) as snapshot:
            if snapshot.dataset.name != stored.dataset.name:
                raise SnapshotRefused(f"it belongs to dataset {snapshot.dataset.name}")
            if snapshot.dataset != stored.dataset:
                return None  # of a removed dataset of that name, never used for this one
            if path.stem != f"{stored.dataset.name}-{snapshot.id}":
                raise SnapshotRefused(f"the file holds snapshot {snapshot.id}")
            lost, files = _lost_chunks(snapshot, stored)
    except (OSError, SnapshotRefused) as error:
        return _finding(
            FindingKind.SNAPSHOT_DAMAGED, str(path), str(error), Repair.DELETE_LOCAL, damaged=False
        )
    if not lost:
        return None
    what = (
        f"{lost:,} of its chunks {agreed(lost, 'were')} retired and deleted: {files:,} of its "
        "files cannot be read"
    )
    return _finding(
        FindingKind.SNAPSHOT_DANGLING, str(path), what, Repair.DELETE_LOCAL, damaged=False
    )


def _lost_chunks(snapshot: Snapshot, stored: ListedDataset) -> tuple[int, int]:
    """Return the number of lost chunks of a snapshot, and the number of files in them.

    A lost chunk is not in the store as the snapshot names it, and no commit requires it any more.
    """
    required = stored.required()
    chunks = files = 0
    for number in range(snapshot.chunk_count):
        ref = snapshot.chunk(number)
        there = stored.sizes.get(ref.id) == ref.object_bytes
        if not there and ref.id not in required:
            chunks += 1
            files += len(snapshot.files_in_chunk(number))
    return chunks, files


def _check_tags(
    store: ObjectStore, stored: ListedDataset, published: set[str]
) -> Iterator[Finding]:
    found = read_tags(store, stored.dataset)
    prefix = tags_prefix(stored.dataset.name)
    for name, reason in found.damaged.items():
        yield Finding(
            FindingKind.TAG_DANGLING, f"{prefix}{name}", reason, _TAG_ADVICE, damaged=True
        )
    for tag in current(found, stored.dataset):
        if tag.snapshot_id not in published:
            what = f"it names snapshot {tag.snapshot_id}, which is not in the store"
            yield Finding(
                FindingKind.TAG_DANGLING, f"{prefix}{tag.name}", what, _TAG_ADVICE, damaged=True
            )

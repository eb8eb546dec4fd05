"""Pruning of a dataset's snapshots: the rule as a pure function, its input, and the deletion.

Tags and running mounts keep their snapshots, and the newest always stays. The chunks of a snapshot
are not deleted with it: purge and gc do that once nothing else needs them (docs/decisions/0009).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.complete_listings import check_commits_listed
from chunkstore.errors import NotFound
from chunkstore.leases import holding, read_leases
from chunkstore.object_keys import put_snapshot_key, snapshot_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import current, read_tags
from dieselfs.errors import Refused
from dieselfs.snapshots.lifecycle import (
    PublishedSnapshot,
    generation_of,
    id_of,
    list_local,
    list_published,
    published_header,
)
from dieselfs.snapshots.listed_snapshots import check_snapshots_listed
from metadata.errors import SnapshotRefused
from metadata.kernel_image_file import remove_with_images
from metadata.snapshot import Snapshot
from metadata.snapshot_format import SnapshotHeader

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SnapshotVersion:
    """A snapshot of a dataset, wherever it is."""

    snapshot_id: str
    time_ns: int | None
    """The time of its generation's commit.

    None if the snapshot cannot be read; then it is never pruned.
    """
    size_bytes: int
    file: Path | None = None
    """The file on this machine."""
    published: bool = False
    tags: tuple[str, ...] = ()
    leased: bool = False
    """True if a running mount serves its generation."""

    @property
    def generation(self) -> int:
        return generation_of(self.snapshot_id)

    @property
    def order(self) -> tuple[int, str]:
        """The sort key; the newest snapshot has the greatest."""
        return self.generation, self.snapshot_id


@dataclass(frozen=True, slots=True)
class SnapshotVersions:
    """All snapshots of a dataset."""

    dataset: DatasetRef
    versions: tuple[SnapshotVersion, ...]
    """The snapshots, oldest first; without those of former datasets of the name."""
    unreadable: tuple[str, ...] = ()
    """Reasons why tags and leases cannot be read; if there are any, nothing may be deleted."""


def prunable(
    versions: Sequence[SnapshotVersion],
    *,
    keep_last: int | None,
    keep_within_s: float | None,
    now_ns: int,
) -> list[SnapshotVersion]:
    """Return the snapshots that no rule keeps, oldest first.

    Each rule keeps what it names; every rule keeps tagged and leased snapshots and the newest. With
    neither rule nothing is prunable.
    """
    if keep_last is None and keep_within_s is None:
        return []
    ordered = sorted(versions, key=lambda version: version.order)
    newest = ordered[max(0, len(ordered) - max(1, keep_last or 0)) :]
    since_ns = None if keep_within_s is None else now_ns - int(keep_within_s * _NS)
    return [
        version
        for version in ordered
        if version not in newest
        and not (version.tags or version.leased or version.time_ns is None)
        and (since_ns is None or version.time_ns < since_ns)
    ]


def list_versions(
    store: ObjectStore, dataset: DatasetRef, folder: Path, now_ns: int
) -> SnapshotVersions:
    """Return published and local snapshots, with the tags and leases that hold them.

    Costs three listings, a get for each tag and lease, and 4 KiB of each snapshot.
    """
    published = {s.snapshot_id: s for s in list_published(store, dataset.name)}
    files = {id_of(path): path for path in list_local(folder, dataset.name, dataset.id)}
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    check_commits_listed(store, dataset.name)
    check_snapshots_listed(store, dataset.name, published.values(), current(tags, dataset))
    names: dict[str, list[str]] = {}
    for tag in current(tags, dataset):
        names.setdefault(tag.snapshot_id, []).append(tag.name)
    leased = {g for lease in holding(leases, dataset, now_ns) for g in lease.generations}
    found = []
    for snapshot_id in sorted(published.keys() | files.keys()):
        in_store, file = published.get(snapshot_id), files.get(snapshot_id)
        try:
            header = _header(store, dataset, in_store, file)
        except (NotFound, FileNotFoundError):  # deleted meanwhile
            continue
        if header is not None and header.dataset.id != dataset.id:
            continue
        version = SnapshotVersion(
            snapshot_id,
            None if header is None else header.updated_ns,
            in_store.size_bytes if in_store else file.stat().st_size if file else 0,
            file,
            in_store is not None,
            tuple(names.get(snapshot_id, ())),
        )
        found.append(replace(version, leased=version.generation in leased))
    found.sort(key=lambda version: version.order)
    return SnapshotVersions(
        dataset, tuple(found), (*tags.damaged.values(), *leases.damaged.values())
    )


def check_free(
    versions: SnapshotVersions, version: SnapshotVersion, *, force: bool = False
) -> None:
    """Raise `Refused` while a tag or a lease holds the snapshot.

    `force` accepts a snapshot that a running mount serves.
    """
    name = versions.dataset.name
    if versions.unreadable:
        raise Refused(
            f"cannot tell which snapshots of {name} are in use: {'; '.join(versions.unreadable)}",
            f"set or remove the damaged tag again; for leases see `dlcmd gc {name}`",
        )
    if version.tags:
        tag = version.tags[0]
        raise Refused(
            f"snapshot {version.snapshot_id} of {name} is tagged {', '.join(version.tags)}",
            f"remove the tag first, with `dlcmd snapshot untag {name} {tag}`",
        )
    if version.leased and not force:
        raise Refused(
            f"a running mount serves generation {version.generation} of {name}",
            "unmount it, or add --force: its chunks stay until the mount ends",
        )


def delete_snapshots(
    store: ObjectStore,
    dataset: DatasetRef,
    folder: Path,
    chosen: Iterable[SnapshotVersion],
    *,
    now_ns: int,
    force: bool = False,
) -> list[SnapshotVersion]:
    """Delete snapshots from the store and from this machine.

    Raises `Refused` if one has been tagged or leased since they were listed.
    """
    versions = list_versions(store, dataset, folder, now_ns)
    present = {version.snapshot_id: version for version in versions.versions}
    deleted = [present[version.snapshot_id] for version in chosen if version.snapshot_id in present]
    for version in deleted:
        check_free(versions, version, force=force)
    for version in deleted:
        if version.published:
            store.delete(snapshot_key(dataset.name, version.snapshot_id))
            store.delete(put_snapshot_key(dataset.name, version.snapshot_id))
        if version.file is not None:
            remove_with_images(version.file)
    return deleted


def _header(
    store: ObjectStore, dataset: DatasetRef, published: PublishedSnapshot | None, file: Path | None
) -> SnapshotHeader | None:
    """Return the header; None if the snapshot is damaged."""
    try:
        if published is not None:
            return published_header(store, dataset.name, published)
        assert file is not None
        with Snapshot.open(file) as snapshot:
            return snapshot.header
    except SnapshotRefused:
        return None

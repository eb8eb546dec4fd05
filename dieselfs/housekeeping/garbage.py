"""Garbage: objects and local files that nothing needs any more (docs/housekeeping.md).

`find_garbage` finds that of a dataset; the functions at the end find what no dataset shows. The
search changes nothing, and `garbage_deletion` deletes nothing younger than the grace period. Where
the store is incomplete, by a lost commit or a tag that cannot be read, everything that could depend
on it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.complete_listings import check_commits_listed, check_listed
from chunkstore.counted import agreed, counted
from chunkstore.errors import NotFound
from chunkstore.leases import Lease, read_leases
from chunkstore.numbered_objects import NumberedListing, NumberedObject
from chunkstore.object_keys import chunk_key, snapshot_key
from chunkstore.put_leases import PutLease, read_put_leases
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.temporary_files import with_temporary_files
from chunkstore.tags import Tag, current, read_tags
from dieselfs.dataset.dataset import no_dataset
from dieselfs.errors import HistoryDamaged
from dieselfs.housekeeping.retention import (
    GRACE_S,
    RetiredChunk,
    may_be_deleted,
    pins_of,
    retired_chunks,
)
from dieselfs.recovery.history import History, read_history
from dieselfs.snapshots.lifecycle import (
    PublishedSnapshot,
    list_local,
    list_published,
    published_header,
)
from dieselfs.snapshots.listed_snapshots import check_snapshots_listed
from metadata.errors import DatasetNotFound, SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_folder import INCOMPLETE
from metadata.snapshot_format import SnapshotHeader

YOUNG: Final = "younger than the grace period"
PINNED: Final = "a snapshot, a tag or a mount needs it"

_NS: Final = 1_000_000_000
_CLOCKS_DIFFER_NS: Final = 3600 * _NS
_ID_BYTES: Final = 16


class GarbageKind(StrEnum):
    """The kind of a garbage item."""

    UNCOMMITTED = "uncommitted chunk"
    RETIRED = "retired chunk"
    LEASE = "lease"
    SUPERSEDED = "superseded number"
    FORMER_SNAPSHOT = "snapshot of a former dataset"
    DANGLING_SNAPSHOT = "snapshot without its chunks"
    TEMPORARY = "temporary file"
    LOCAL_FILE = "local file"


@dataclass(frozen=True, slots=True)
class GarbageItem:
    """An object or a file that nothing needs, or only until a grace period ends."""

    kind: GarbageKind
    key: str
    """The key of the object, the name of a temporary file, or the path of a local file."""
    size_bytes: int
    reason: str
    kept: str = ""
    """The reason why it stays for now; empty if it may be deleted."""
    chunk: RetiredChunk | None = None
    """The retired chunk, which is checked again before it is deleted."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """The garbage of one dataset."""

    dataset: DatasetRef
    generation: int
    """The newest generation; commits after it were not examined."""
    grace_s: float
    removable: tuple[GarbageItem, ...]
    """Items that may be deleted now."""
    waiting: tuple[GarbageItem, ...]
    """Items that may be deleted later; `kept` gives the reason."""
    notes: tuple[str, ...]
    """Messages for the user about objects that could not be judged."""


def find_garbage(
    store: ObjectStore,
    name: str,
    *,
    now_ns: int,
    grace_s: float = GRACE_S,
    known_generation: int = 0,
    unreadable_leases: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Garbage:
    """Examine all objects of a dataset.

    `known_generation` is the newest generation known elsewhere, for instance to the index. With
    `unreadable_leases`, leases that cannot be read may be deleted; set it only if no mount holds
    them. `progress` receives the number of commits read.

    Raises `DatasetNotFound`, and `HistoryDamaged` if commits are lost: the chunks that they named
    cannot be told from garbage.

    Cost: five listings; a get for each commit, tag and lease; a ranged read for each uncommitted
    chunk, two for each snapshot.
    """
    # Objects that name chunks are read first: the chunks that they name are stored by then.
    published = list_published(store, name)
    dataset = DatasetRef(name, b"")  # listings need the name alone
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    puts = read_put_leases(store, dataset)
    check_commits_listed(store, name)
    history = read_history(store, name, progress)
    if not history.newest and not history.stored:
        raise no_dataset(store, name)
    dataset = history.check_complete()
    check_snapshots_listed(store, name, published, current(tags, dataset))
    if history.is_removed:
        raise DatasetNotFound(
            f"dataset {name!r} is half removed: finish it with `dlcmd dataset rm {name}`"
        )
    search = _Search(store, dataset, published, tags, leases, puts, history, now_ns, grace_s)
    search.check_newest(known_generation)
    found = [
        *search.unreadable(unreadable_leases),
        *search.uncommitted_chunks(),
        *search.retired_chunks(),
        *search.tags_too_many(),
        *search.leases_too_many(unreadable_leases),
        *search.put_leases_too_many(),
        *search.snapshots(),
    ]
    items = [each for each in found if isinstance(each, GarbageItem)]
    return Garbage(
        dataset,
        history.newest,
        grace_s,
        tuple(item for item in items if not item.kept),
        tuple(item for item in items if item.kept),
        tuple(note for note in found if isinstance(note, str)),
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """One search among everything that was listed and read, once. It yields items and notes."""

    store: ObjectStore
    dataset: DatasetRef
    published: list[PublishedSnapshot]
    tags: NumberedListing[Tag]
    leases: NumberedListing[Lease]
    puts: NumberedListing[PutLease]
    history: History
    now_ns: int
    grace_s: float

    def _item(
        self,
        kind: GarbageKind,
        key: str,
        size_bytes: int,
        reason: str,
        time_ns: int | None,
        kept: str = "",
    ) -> GarbageItem:
        """Return an item; it stays while it is younger than the grace period, or of unknown age."""
        young = time_ns is None or time_ns > self.now_ns - int(self.grace_s * _NS)
        return GarbageItem(kind, key, size_bytes, reason, kept or (YOUNG if young else ""))

    def check_newest(self, known_generation: int) -> None:
        """Raise `HistoryDamaged` if a tag, a lease or the caller knows a generation after the log.

        A commit that is lost at the end of the log leaves no gap.
        """
        tagged = [tag.generation for tag in current(self.tags, self.dataset)]
        leases = self.leases.values.values()
        leased = [g for own in leases if own.dataset_id == self.dataset.id for g in own.generations]
        known = max([known_generation, *tagged, *leased])
        if known > self.history.newest:
            name = self.dataset.name
            raise HistoryDamaged(
                f"{name} was at generation {known}, but its newest commit in the store is "
                f"{self.history.newest}",
                f"nothing was deleted; see `dlcmd fsck {name}` and `dlcmd recover {name}`",
            )

    def unreadable(self, drop_leases: bool) -> Iterator[str]:
        """Yield why retired chunks stay, and what the user can do."""
        name = self.dataset.name
        for tag, reason in self.tags.damaged.items():
            yield (
                f"{reason}, so all retired chunks stay: run `dlcmd snapshot untag {name} {tag}`, "
                "or set the tag again"
            )
        for reason in () if drop_leases else self.leases.damaged.values():
            yield (
                f"{reason}, so all retired chunks stay: if no mount uses this lease, run "
                f"`dlcmd gc {name} --unreadable-leases --delete`"
            )

    def uncommitted_chunks(self) -> Iterator[GarbageItem]:
        """Yield the uncommitted chunks; the time in the id gives their age.

        A clock that is wrong by more than the grace period is noticed only if it is behind the
        creation of the dataset.
        """
        born_ns = self.history.commits[0].time_ns
        for chunk in self.history.uncommitted:
            stored_ns = chunk.id.seconds * _NS
            own = chunk.evidence is not None and chunk.evidence.dataset == self.dataset
            too_old = own and stored_ns < born_ns - _CLOCKS_DIFFER_NS
            yield self._item(
                GarbageKind.UNCOMMITTED,
                chunk_key(self.dataset.name, chunk.id),
                chunk.object_bytes,
                "no commit names it",
                stored_ns,
                "its age is unknown, because its writer's clock was wrong" if too_old else "",
            )

    def retired_chunks(self) -> Iterator[GarbageItem]:
        """Yield the retired chunks that are still stored."""
        pins = pins_of(self.dataset, self.published, self.tags, self.leases, self.now_ns)
        for chunk in retired_chunks(self.history.commits):
            size_bytes = self.history.stored.get(chunk.ref.id)
            if size_bytes is None:
                continue
            kept = ""
            if not may_be_deleted(chunk, pins, self.grace_s, self.now_ns):
                kept = PINNED if pins.protects(chunk.added, chunk.retired) else YOUNG
            key = chunk_key(self.dataset.name, chunk.ref.id)
            reason = f"retired by generation {chunk.retired}"
            yield GarbageItem(GarbageKind.RETIRED, key, size_bytes, reason, kept, chunk)

    def tags_too_many(self) -> Iterator[GarbageItem]:
        """Yield the objects of tags that later ones supersede, and those of removed tags."""
        for name, entries in self.tags.objects.items():
            newest = self.tags.values.get(name)
            written_ns = None if newest is None else newest.time_ns
            for entry in entries[:-1]:
                yield self._superseded(entry, f"tag {name} changed", written_ns)
            if newest is not None and newest.dataset_id != self.dataset.id:
                reason = f"tag {name} belongs to a removed dataset of this name"
                yield self._superseded(entries[-1], reason, written_ns)
            elif newest is not None and newest.gone and len(entries) == 1:
                # The removal stays until the entries that it revokes are gone: alone they would be
                # valid again.
                yield self._superseded(entries[-1], f"tag {name} is removed", written_ns)

    def leases_too_many(self, unreadable_too: bool) -> Iterator[GarbageItem]:
        """Yield the objects of leases that were renewed, have expired, or cannot be read."""
        for lease_id, entries in self.leases.objects.items():
            newest, last = self.leases.values.get(lease_id), entries[-1]
            written_ns = None if newest is None else newest.written_ns
            for entry in entries[:-1]:
                yield self._superseded(entry, f"lease {lease_id} was renewed", written_ns)
            if newest is None:
                if unreadable_too and lease_id in self.leases.damaged:
                    reason = self.leases.damaged[lease_id]
                    yield GarbageItem(GarbageKind.LEASE, last.key, last.size_bytes, reason)
            elif newest.dataset_id != self.dataset.id or newest.is_over(self.now_ns):
                reason = f"expired: process {newest.pid} of {newest.host!r} does not renew it"
                yield self._item(GarbageKind.LEASE, last.key, last.size_bytes, reason, written_ns)

    def put_leases_too_many(self) -> Iterator[GarbageItem]:
        """Yield the leases of puts that were not renewed for hours: the puts were killed."""
        for lease in self.puts.values.values():
            if self.now_ns - lease.written_ns > _CLOCKS_DIFFER_NS:
                reason = f"the put of process {lease.pid} of {lease.host!r} was killed"
                for entry in self.puts.objects[lease.lease_id]:
                    yield self._item(
                        GarbageKind.LEASE, entry.key, entry.size_bytes, reason, lease.written_ns
                    )

    def _superseded(
        self, entry: NumberedObject, reason: str, written_ns: int | None
    ) -> GarbageItem:
        """Return an item of a numbered object; it is as old as the greatest number, `written_ns`.

        The object was superseded or ended by then.
        """
        kind = GarbageKind.SUPERSEDED
        return self._item(kind, entry.key, entry.size_bytes, reason, written_ns)

    def snapshots(self) -> Iterator[GarbageItem | str]:
        """Yield the snapshots of former datasets, and those whose chunks were all deleted rightly.

        A snapshot that lacks only some chunks, or a chunk that no commit retired, is damaged and no
        garbage: the rest of it can be read. It is noted, and left to `dlcmd fsck`. Costs two ranged
        reads for each snapshot: a header, and 16 bytes a chunk.
        """
        name, retired = self.dataset.name, self.history.retired()
        pinned = pins_of(self.dataset, (), self.tags, self.leases, self.now_ns).generations
        advice = f"see `dlcmd fsck {name}`"
        for snapshot in self.published:
            object_ = snapshot_key(name, snapshot.snapshot_id), snapshot.size_bytes
            try:
                header = published_header(self.store, name, snapshot)
                is_former = header.dataset.id != self.dataset.id
                chunks = [] if is_former else self._chunks(snapshot, header)
            except SnapshotRefused as error:
                yield f"snapshot {snapshot.snapshot_id} is damaged ({error}): {advice}"
                continue
            except NotFound:  # deleted meanwhile
                continue
            missing = [chunk for chunk in chunks if chunk not in self.history.stored]
            if is_former:
                kind, reason = (
                    GarbageKind.FORMER_SNAPSHOT,
                    "it belongs to a removed dataset of this name",
                )
                yield self._item(kind, *object_, reason, header.updated_ns)
            elif missing == chunks and all(chunk in retired for chunk in missing):
                check_listed(self.store, (chunk_key(name, chunk) for chunk in missing))
                kind, reason = (
                    GarbageKind.DANGLING_SNAPSHOT,
                    f"its {counted(len(chunks), 'chunk', 'are')} deleted",
                )
                kept = PINNED if snapshot.generation in pinned else ""
                if chunks:
                    yield self._item(kind, *object_, reason, header.updated_ns, kept)
            elif missing:
                yield (
                    f"{len(missing)} of the {counted(len(chunks), 'chunk')} that snapshot "
                    f"{snapshot.snapshot_id} needs {agreed(len(missing), 'are')} lost: {advice}"
                )

    def _chunks(self, snapshot: PublishedSnapshot, header: SnapshotHeader) -> list[ChunkId]:
        """Return the chunks that hold a live file of the snapshot."""
        start, size = header.sections["chunk_id"]
        key = snapshot_key(self.dataset.name, snapshot.snapshot_id)
        data = bytes(self.store.get_range(key, start, size))
        if len(data) != size:
            raise SnapshotRefused("it is shorter than its header says")
        return [ChunkId(data[at : at + _ID_BYTES]) for at in range(0, size, _ID_BYTES)]


def temporary_files(store: ObjectStore, grace_s: float) -> list[GarbageItem]:
    """Return the temporary files that killed writers left in a store, if it can have any."""
    offered = with_temporary_files(store)
    found = offered.temporary_files(grace_s) if offered is not None else ()
    return [
        GarbageItem(GarbageKind.TEMPORARY, info.key, info.size_bytes, "its writer has ended")
        for info in found
    ]


def former_snapshots(
    folder: Path, name: str, dataset_id: bytes | None, grace_s: float, now_s: float
) -> list[GarbageItem]:
    """Return local snapshot files of other datasets of this name; of all if the id is None.

    Such a dataset had the name before, or has it in another store.
    """
    reason = "it belongs to another dataset of this name"
    if dataset_id is None:
        reason = "the store has no dataset of this name"
    found = []
    for path in list_local(folder, name):
        with suppress(OSError, SnapshotRefused), Snapshot.open(path) as snapshot:
            if snapshot.dataset.id != dataset_id:
                found.append(path)
    return _judged(found, reason, grace_s, now_s)


def incomplete_snapshots(folder: Path, grace_s: float, now_s: float) -> list[GarbageItem]:
    """Return the files that killed pulls and creations left in the folder of local snapshots."""
    return _judged(folder.glob(f"{INCOMPLETE}*"), "its writer has ended", grace_s, now_s)


def _judged(paths: Iterable[Path], reason: str, grace_s: float, now_s: float) -> list[GarbageItem]:
    """Return items of local files. No commit names them, so the time of the last write decides."""
    items = []
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            found = path.stat()
            kept = YOUNG if now_s - found.st_mtime < grace_s else ""
            items.append(
                GarbageItem(GarbageKind.LOCAL_FILE, str(path), found.st_size, reason, kept)
            )
    return items

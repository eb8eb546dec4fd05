"""The rules of what may be deleted, and when (docs/decisions/0009).

A snapshot of generation g needs the chunks added up to g and not retired up to g. So only the
generations of readers must be known: those of published snapshots, of tags, and of the leases of
running mounts. Where one of these cannot be read, everything counts as needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit, find_dataset
from chunkstore.complete_listings import check_chunks_listed
from chunkstore.leases import Lease, holding, read_leases
from chunkstore.numbered_objects import NumberedListing
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import Tag, current, read_tags
from dieselfs.snapshots.lifecycle import PublishedSnapshot, list_published
from dieselfs.snapshots.listed_snapshots import check_snapshots_listed

GRACE_S: Final = 7 * 24 * 3600
"""The grace period: younger objects are kept.

It protects mounts that may not write a lease, snapshots that lie in files, and late commits.
"""
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pins:
    """The generations that may still be read."""

    generations: tuple[int, ...] = ()
    """The generations, ascending, each once."""
    unreadable: tuple[str, ...] = ()
    """Reasons why tags and leases cannot be read; if there are any, nothing may be deleted."""

    @property
    def everything(self) -> bool:
        """True if nothing may be deleted."""
        return bool(self.unreadable)

    def protects(self, added: int, retired: int) -> bool:
        """Return True if a pinned generation g has the chunk: added ≤ g < retired.

        The chunk was added by generation `added` and retired by `retired`.
        """
        if self.everything:
            return True
        at = bisect_left(self.generations, added)
        return at < len(self.generations) and self.generations[at] < retired


@dataclass(frozen=True, slots=True)
class RetiredChunk:
    """A chunk that the newest generation does not have any more."""

    ref: ChunkRef
    added: int
    """The generation of the commit that added it."""
    retired: int
    retired_ns: int
    """The time of the commit that retired it, by that writer's clock."""

    @property
    def size_bytes(self) -> int:
        return self.ref.object_bytes


def pins(store: ObjectStore, name: str, now_ns: int, without: Collection[str] = ()) -> Pins:
    """Return what is pinned now; nothing for a dataset that does not exist.

    `without` are ids of published snapshots that do not count. Raises `Untrusted` if a listing
    lacks a snapshot. Costs four listings, and one get for each tag and lease.
    """
    dataset = find_dataset(store, name)
    if dataset is None:
        return Pins()
    listed = list_published(store, name)
    published = [snapshot for snapshot in listed if snapshot.snapshot_id not in without]
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    check_snapshots_listed(store, name, listed, current(tags, dataset))
    return pins_of(dataset, published, tags, leases, now_ns)


def pins_of(
    dataset: DatasetRef,
    published: Iterable[PublishedSnapshot],
    tags: NumberedListing[Tag],
    leases: NumberedListing[Lease],
    now_ns: int,
) -> Pins:
    """Return what is pinned, from listings.

    Snapshots are garbage themselves; without them, the result is what keeps a snapshot.
    """
    generations = {snapshot.generation for snapshot in published}
    generations.update(tag.generation for tag in current(tags, dataset))
    for lease in holding(leases, dataset, now_ns):
        generations.update(lease.generations)
    unreadable = (*tags.damaged.values(), *leases.damaged.values())
    return Pins(tuple(sorted(generations)), unreadable)


def retired_chunks(commits: Sequence[Commit]) -> list[RetiredChunk]:
    """Return the chunks that `commits` added and then retired, whether their objects exist or not.

    `commits` are generations 1 to the newest in order. A chunk that was added again later is left
    out.
    """
    _check_complete(commits)
    added: dict[ChunkId, tuple[ChunkRef, int]] = {}
    retired: dict[ChunkId, RetiredChunk] = {}
    for commit in commits:
        for ref in commit.added:
            added[ref.id] = ref, commit.generation
            retired.pop(ref.id, None)
        for chunk_id in commit.retired:
            if chunk_id in added:
                ref, generation = added[chunk_id]
                retired[chunk_id] = RetiredChunk(ref, generation, commit.generation, commit.time_ns)
    return list(retired.values())


def may_be_deleted(chunk: RetiredChunk, pins: Pins, grace_s: float, now_ns: int) -> bool:
    """Return True if no reader may need the chunk and it was retired before the grace period."""
    old = now_ns - chunk.retired_ns >= grace_s * _NS
    return old and not pins.protects(chunk.added, chunk.retired)


def stored_retired_chunks(
    store: ObjectStore, dataset: DatasetRef, commits: Sequence[Commit]
) -> list[RetiredChunk]:
    """Return the retired chunks whose object still exists; costs one listing of the chunks.

    `commits` are generations 1 to the newest; `ValueError` if one is missing. Raises `Untrusted` if
    the listing lacks a chunk that is there and not retired.
    """
    sizes = chunk_sizes(store, dataset.name)
    check_chunks_listed(store, dataset.name, commits, sizes)
    return [chunk for chunk in retired_chunks(commits) if chunk.ref.id in sizes]


def _check_complete(commits: Sequence[Commit]) -> None:
    """Raise `ValueError` if a commit is missing.

    A missing commit may have added a chunk that a later one retires, or have retired it earlier.
    """
    if [commit.generation for commit in commits] != list(range(1, len(commits) + 1)):
        raise ValueError("commits are needed from generation 1 on, in order and without gaps")

"""Garbage among a dataset's objects: objects that nothing needs any more (docs/housekeeping.md).

`find_garbage` finds it, `garbage_removal` deletes it. The search changes nothing, and nothing
younger than the grace period is deleted. Where the store is incomplete, by a lost commit or a tag
that cannot be read, everything that could depend on it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.leases import Lease, read_leases
from chunkstore.numbered_objects import NumberedListing, NumberedObject
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import Tag, current, read_tags
from dieselfs.errors import HistoryDamaged
from dieselfs.housekeeping.garbage_items import PINNED, YOUNG, GarbageItem, GarbageKind
from dieselfs.housekeeping.garbage_snapshots import judge_snapshots
from dieselfs.housekeeping.retention import (
    GRACE_S,
    Pins,
    may_be_deleted,
    pinned_generations,
    pins_of,
    retired_chunks,
)
from dieselfs.recovery.history import History, read_history
from dieselfs.snapshots.lifecycle import PublishedSnapshot, list_published
from metadata.errors import DatasetNotFound

_NS: Final = 1_000_000_000
_CLOCKS_DIFFER_NS: Final = 3600 * _NS


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

    Cost: four listings; a get for each commit, tag and lease; a ranged read for each uncommitted
    chunk, two for each snapshot.
    """
    facts = _read_facts(store, name, now_ns, grace_s, progress)
    _check_newest(facts, known_generation)
    pinned = pinned_generations(facts.dataset, facts.tags, facts.leases, now_ns)
    snapshots = judge_snapshots(
        store, facts.history, facts.dataset.id, facts.published, pinned, facts.oldest_kept_ns
    )
    found = [
        *_uncommitted_chunks(facts),
        *_retired_chunks(facts),
        *_tags(facts),
        *_leases(facts, unreadable_leases),
        *snapshots.items,
    ]
    return Garbage(
        facts.dataset,
        facts.history.newest,
        grace_s,
        tuple(item for item in found if not item.kept),
        tuple(item for item in found if item.kept),
        (*_unreadable(facts, unreadable_leases), *snapshots.notes),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """Everything that was listed and read, once."""

    dataset: DatasetRef
    published: list[PublishedSnapshot]
    tags: NumberedListing[Tag]
    leases: NumberedListing[Lease]
    history: History
    pins: Pins
    now_ns: int
    grace_s: float

    @property
    def oldest_kept_ns(self) -> int:
        """The limit of the grace period: items of a later time are younger."""
        return self.now_ns - int(self.grace_s * _NS)


def _read_facts(
    store: ObjectStore,
    name: str,
    now_ns: int,
    grace_s: float,
    progress: Callable[[int], None] | None,
) -> _Facts:
    """Read the objects that name chunks first and the chunks last.

    The chunks that they name are stored by then.
    """
    published = list_published(store, name)
    dataset = DatasetRef(name, b"")  # listings need the name alone
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    history = read_history(store, name, progress)
    if not history.newest and not history.stored:
        raise DatasetNotFound(f"there is no dataset {name!r}")
    dataset = history.check_complete()
    if history.is_removed:
        raise DatasetNotFound(
            f"dataset {name!r} is half removed: finish it with `dlcmd dataset rm {name}`"
        )
    return _Facts(
        dataset,
        published,
        tags,
        leases,
        history,
        pins_of(dataset, published, tags, leases, now_ns),
        now_ns,
        grace_s,
    )


def _check_newest(facts: _Facts, known_generation: int) -> None:
    """Raise `HistoryDamaged` if a tag, a lease or the caller knows a newer generation than the log.

    A commit that is lost at the end of the log leaves no gap.
    """
    tagged = [tag.generation for tag in current(facts.tags, facts.dataset)]
    leases = facts.leases.values.values()
    leased = [
        g for lease in leases if lease.dataset_id == facts.dataset.id for g in lease.generations
    ]
    known = max([known_generation, *tagged, *leased])
    if known > facts.history.newest:
        name = facts.dataset.name
        raise HistoryDamaged(
            f"{name} was at generation {known}, but its newest commit in the store is "
            f"{facts.history.newest}",
            f"nothing was deleted; see `dlcmd fsck {name}` and `dlcmd recover {name}`",
        )


def _unreadable(facts: _Facts, drop_leases: bool) -> Iterator[str]:
    """Yield why retired chunks stay, and what the user can do."""
    name = facts.dataset.name
    for tag, reason in facts.tags.damaged.items():
        yield (
            f"{reason}, so all retired chunks stay: run `dlcmd snapshot untag {name} {tag}`, or "
            "set the tag again"
        )
    for reason in () if drop_leases else facts.leases.damaged.values():
        yield (
            f"{reason}, so all retired chunks stay: if no mount uses this lease, run "
            f"`dlcmd gc {name} --unreadable-leases --delete`"
        )


def _uncommitted_chunks(facts: _Facts) -> Iterator[GarbageItem]:
    """Yield the uncommitted chunks; the time in the id gives their age.

    A clock that is wrong by more than the grace period is noticed only if it is behind the creation
    of the dataset.
    """
    born_ns = facts.history.commits[0].time_ns
    for chunk in facts.history.uncommitted:
        key = chunk_key(facts.dataset.name, chunk.id)
        stored_ns = chunk.id.seconds * _NS
        own = chunk.evidence is not None and chunk.evidence.dataset == facts.dataset
        if own and stored_ns < born_ns - _CLOCKS_DIFFER_NS:
            kept = "its age is unknown, because its writer's clock was wrong"
        else:
            kept = YOUNG if stored_ns > facts.oldest_kept_ns else ""
        reason = "no commit names it"
        yield GarbageItem(GarbageKind.UNCOMMITTED, key, chunk.object_bytes, reason, kept)


def _retired_chunks(facts: _Facts) -> Iterator[GarbageItem]:
    for chunk in retired_chunks(facts.history.commits):
        size_bytes = facts.history.stored.get(chunk.ref.id)
        if size_bytes is None:
            continue
        kept = ""
        if not may_be_deleted(chunk, facts.pins, facts.grace_s, facts.now_ns):
            kept = PINNED if facts.pins.protects(chunk.added, chunk.retired) else YOUNG
        key = chunk_key(facts.dataset.name, chunk.ref.id)
        reason = f"retired by generation {chunk.retired}"
        yield GarbageItem(GarbageKind.RETIRED, key, size_bytes, reason, kept, chunk)


def _tags(facts: _Facts) -> Iterator[GarbageItem]:
    for name, entries in facts.tags.objects.items():
        newest = facts.tags.values.get(name)
        written_ns = None if newest is None else newest.time_ns
        for entry in entries[:-1]:
            yield _numbered(facts, GarbageKind.SUPERSEDED, entry, f"tag {name} changed", written_ns)
        if newest is not None and newest.dataset_id != facts.dataset.id:
            reason = f"tag {name} belongs to a removed dataset of this name"
            yield _numbered(facts, GarbageKind.SUPERSEDED, entries[-1], reason, written_ns)
        elif newest is not None and newest.gone and len(entries) == 1:
            # The removal stays until the entries that it revokes are gone: alone they would be
            # valid again.
            reason = f"tag {name} is removed"
            yield _numbered(facts, GarbageKind.SUPERSEDED, entries[-1], reason, written_ns)


def _leases(facts: _Facts, unreadable_too: bool) -> Iterator[GarbageItem]:
    for lease_id, entries in facts.leases.objects.items():
        newest, last = facts.leases.values.get(lease_id), entries[-1]
        written_ns = None if newest is None else newest.written_ns
        for entry in entries[:-1]:
            reason = f"lease {lease_id} was renewed"
            yield _numbered(facts, GarbageKind.SUPERSEDED, entry, reason, written_ns)
        if newest is None:
            if unreadable_too and lease_id in facts.leases.damaged:
                reason = facts.leases.damaged[lease_id]
                yield GarbageItem(GarbageKind.LEASE, last.key, last.size_bytes, reason)
        elif newest.dataset_id != facts.dataset.id or newest.is_over(facts.now_ns):
            reason = f"expired: process {newest.pid} of {newest.host!r} does not renew it"
            yield _numbered(facts, GarbageKind.LEASE, last, reason, written_ns)


def _numbered(
    facts: _Facts, kind: GarbageKind, entry: NumberedObject, reason: str, written_ns: int | None
) -> GarbageItem:
    """Return an item of a numbered object; it is as old as the greatest number, `written_ns`.

    The object was superseded or ended by then. An item of unknown age (None) stays.
    """
    young = written_ns is None or written_ns > facts.oldest_kept_ns
    return GarbageItem(kind, entry.key, entry.size_bytes, reason, YOUNG if young else "")

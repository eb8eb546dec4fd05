"""Removing a dataset from the store, so that a crash in the middle is finished by whoever uses the name next.

The last commit says that the dataset ends. Then all else is deleted, the birth next to last and that commit last: as long as there is a
birth, the end stands beside it, so that nobody takes a removed dataset for an empty one and writes into it. An end without its birth ends
nothing (it carries its dataset's id): it is swept by the next who takes the name.
"""

from __future__ import annotations

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import (
    BIRTH_GENERATION,
    Commit,
    CommitLog,
    find_dataset,
    newest_generation,
)
from chunkstore.errors import NotFound
from chunkstore.object_keys import commit_key, dataset_prefix
from chunkstore.stores.object_store import ObjectStore


def mark_removed(store: ObjectStore, log: CommitLog) -> None:
    """End the dataset: from now on nobody opens it. `finish_removal` deletes what is left. `NotFound` if that has happened.

    The newest commit itself is looked at: if somebody has ended the dataset just now, nothing may follow.
    """
    sweep_old_end(store, log.dataset)
    newest = newest_generation(store, log.dataset.name)
    if not newest:
        raise NotFound(f"dataset {log.dataset.name} has been removed")
    log.append(max(newest - 1, BIRTH_GENERATION), [], removed=True)


def finish_removal(store: ObjectStore, name: str) -> bool:
    """Delete the objects of a dataset that has ended, and tell whether there was one. A live one is left alone.

    One listing; one delete for each object."""
    # Listed before the birth is looked at: none of it is of a later life.
    found = list(store.list(dataset_prefix(name)))
    ended = _end(store, name)
    if ended is None:
        return False
    end, birth = commit_key(name, ended.generation), commit_key(name, BIRTH_GENERATION)
    # Without the birth only the end is left: the rest, if any, is of a life that began just now.
    if _is_born(store, name, ended.dataset_id):
        for info in found:
            if info.key not in (end, birth):
                store.delete(info.key)
        # Somebody else may have finished meanwhile, and a new life of the name have begun.
        if _is_born(store, name, ended.dataset_id):
            store.delete(birth)
    if _commit_at(store, name, ended.generation) == ended:
        store.delete(end)
    return True


def is_removed(store: ObjectStore, name: str) -> bool:
    """Whether the dataset has ended, though objects of it may be left. One listing and at most two gets."""
    return _end(store, name) is not None


def sweep_old_end(store: ObjectStore, dataset: DatasetRef) -> None:
    """Delete the end that a former life of the name left behind, if it did. One listing and a get."""
    newest = newest_generation(store, dataset.name)
    last = _commit_at(store, dataset.name, newest)
    if (
        last is not None
        and last.removed
        and last.dataset_id != dataset.id
        and _is_born(store, dataset.name, dataset.id)
    ):
        store.delete(commit_key(dataset.name, newest))


def _end(store: ObjectStore, name: str) -> Commit | None:
    """The commit that ended the dataset. One that a former life of the name left behind is none."""
    commit = _commit_at(store, name, newest_generation(store, name))
    if commit is None or not commit.removed:
        return None
    living = find_dataset(store, name)
    return commit if living is None or living.id == commit.dataset_id else None


def _commit_at(store: ObjectStore, name: str, generation: int) -> Commit | None:
    try:
        return Commit.decode(store.get(commit_key(name, generation)), generation)
    except NotFound:  # there is none, or somebody else finishes the removal just now
        return None


def _is_born(store: ObjectStore, name: str, dataset_id: bytes) -> bool:
    found = find_dataset(store, name)
    return found is not None and found.id == dataset_id

"""Removing a dataset from the store, so that a crash in the middle is finished by whoever uses the name next.

The last commit says that the dataset ends. Then all else is deleted, that commit next to last and the birth last: while any old chunk or
commit is left, the name can't be taken for a new life (and old chunks would carry the wrong id anyway).
"""

from __future__ import annotations

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
    newest = newest_generation(store, log.dataset.name)
    if not newest:
        raise NotFound(f"dataset {log.dataset.name} has been removed")
    log.append(max(newest - 1, BIRTH_GENERATION), [], removed=True)


def finish_removal(store: ObjectStore, name: str) -> bool:
    """Delete the objects of a dataset that has ended, and tell whether there was one. A live one is left alone.

    One listing; one delete for each object."""
    ended = _end(store, name)
    if ended is None:
        return False
    end, birth = commit_key(name, ended.generation), commit_key(name, BIRTH_GENERATION)
    for info in list(store.list(dataset_prefix(name))):
        if info.key not in (end, birth):
            store.delete(info.key)
    store.delete(end)
    # Somebody else may have finished meanwhile, and a new life of the name have begun.
    found = find_dataset(store, name)
    if found is not None and found.id == ended.dataset_id:
        store.delete(birth)
    return True


def is_removed(store: ObjectStore, name: str) -> bool:
    """Whether the dataset has ended, though objects of it may be left. One listing and one get."""
    return _end(store, name) is not None


def _end(store: ObjectStore, name: str) -> Commit | None:
    """The commit that ended the dataset."""
    newest = newest_generation(store, name)
    if not newest:
        return None
    try:
        commit = Commit.decode(store.get(commit_key(name, newest)), newest)
    except NotFound:  # somebody else finishes it just now
        return None
    return commit if commit.removed else None

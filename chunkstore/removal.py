"""Removing a dataset from the store, so that a crash in the middle is finished by whoever uses the name next.

The last commit says that the dataset ends. Then all else is deleted, that commit next to last and the birth last: while any old chunk or
commit is left, the name can't be taken for a new life (and old chunks would carry the wrong id anyway).
"""

from __future__ import annotations

from chunkstore.commit_log import BIRTH_GENERATION, Commit, CommitLog, newest_generation
from chunkstore.object_keys import commit_key, dataset_prefix
from chunkstore.stores.object_store import ObjectStore


def mark_removed(store: ObjectStore, log: CommitLog) -> None:
    """End the dataset: from now on nobody opens it. `finish_removal` deletes what is left."""
    log.append(newest_generation(store, log.dataset.name), [], removed=True)


def finish_removal(store: ObjectStore, name: str) -> bool:
    """Delete the objects of a dataset that has ended, and tell whether there was one. A live one is left alone.

    One listing; one delete for each object."""
    ended = _ended_at(store, name)
    if not ended:
        return False
    kept = [commit_key(name, ended), commit_key(name, BIRTH_GENERATION)]
    for info in list(store.list(dataset_prefix(name))):
        if info.key not in kept:
            store.delete(info.key)
    for key in kept:
        store.delete(key)
    return True


def is_removed(store: ObjectStore, name: str) -> bool:
    """Whether the dataset has ended, though objects of it may be left. One listing and one get."""
    return bool(_ended_at(store, name))


def _ended_at(store: ObjectStore, name: str) -> int:
    newest = newest_generation(store, name)
    if newest and Commit.decode(store.get(commit_key(name, newest)), newest).removed:
        return newest
    return 0

"""The removal of a dataset from the store; if it crashes, the next user of the name finishes it.

The last commit, the end, marks the dataset as removed. All other objects are then deleted, the
commits in order, the birth last but one and the end last. So the end exists as long as the birth
does, and nobody mistakes a removed dataset for an empty one and writes into it. An end without its
birth ends nothing (it carries its dataset's id). The next process that takes the name deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import (
    BIRTH_GENERATION,
    Commit,
    CommitLog,
    find_dataset,
    listed_generations,
    newest_generation,
)
from chunkstore.errors import NotFound
from chunkstore.object_keys import chunk_of_key, commit_key, dataset_prefix
from chunkstore.stores.object_store import ObjectStore


def mark_removed(store: ObjectStore, log: CommitLog) -> None:
    """Commit the end of the dataset, after which nobody can open it.

    `finish_removal` deletes the remaining objects. Raises `NotFound` if the dataset has already
    been removed. The function also reads the newest commit itself: if another process has just
    committed the end, no commit may follow.
    """
    sweep_old_end(store, log.dataset)
    name = log.dataset.name
    for generation in _newest_first(store, name):
        commit = _commit_at(store, name, generation)
        if commit is not None and commit.dataset_id == log.dataset.id:
            log.append(max(generation - 1, BIRTH_GENERATION), [], removed=True)
            return
    raise NotFound(f"dataset {name} has been removed")


def finish_removal(store: ObjectStore, name: str) -> bool:
    """Delete the objects of an ended dataset; return whether there was one.

    A dataset that has not ended is left alone. Cost: two listings, one delete for each object, and
    one get for each that is not a chunk.
    """
    # The listing precedes the look at the birth, so it holds no object of a later dataset.
    found = sorted(info.key for info in store.list(dataset_prefix(name)))
    ended = _end(store, name)
    if ended is None:
        return False
    log = CommitLog(store, DatasetRef(name, ended.dataset_id))
    end, birth = commit_key(name, ended.generation), commit_key(name, BIRTH_GENERATION)
    _delete_all(store, log, [key for key in found if key not in (end, birth)])
    # Another process may have finished meanwhile, and a new dataset of the name may exist.
    if log.is_born():
        store.delete(birth)
    _withdraw_late(store, log, ended.generation)
    log.withdraw(ended.generation)
    return True


def _delete_all(store: ObjectStore, log: CommitLog, keys: Sequence[str]) -> None:
    """Delete objects of an ended dataset, its commits in order, as long as it has its birth.

    Without the birth another process has finished the removal, and the keys of commits and tags may
    be those of a new dataset of the name. The key of a chunk never is.
    """
    for key in keys:
        if chunk_of_key(log.dataset.name, key) is None and not log.is_born():
            return
        store.delete(key)


def _withdraw_late(store: ObjectStore, log: CommitLog, end: int) -> None:
    """Delete the commits that late writers have made since the commits were listed."""
    for generation in listed_generations(store, log.dataset.name):
        if generation != end:
            log.withdraw(generation)


def is_removed(store: ObjectStore, name: str) -> bool:
    """Return whether the dataset has ended, even if some of its objects are left.

    Cost: one listing and at most two gets.
    """
    return _end(store, name) is not None


def sweep_old_end(store: ObjectStore, dataset: DatasetRef) -> None:
    """Delete the end that a removed dataset of the same name left behind, if there is one.

    Cost: one listing and a get.
    """
    newest = newest_generation(store, dataset.name)
    last = _commit_at(store, dataset.name, newest)
    if (
        last is not None
        and last.removed
        and last.dataset_id != dataset.id
        and CommitLog(store, dataset).is_born()
    ):
        store.delete(commit_key(dataset.name, newest))


def _end(store: ObjectStore, name: str) -> Commit | None:
    """Return the commit that ended the dataset, or None.

    Commits that an earlier dataset of the name left behind do not count.
    """
    generations = _newest_first(store, name)
    living = find_dataset(store, name)
    for generation in generations:
        commit = _commit_at(store, name, generation)
        if commit is None or (living is not None and living.id != commit.dataset_id):
            continue
        if commit.removed:
            return commit
        if living is not None:
            return None
    return None


def _newest_first(store: ObjectStore, name: str) -> list[int]:
    return sorted(listed_generations(store, name), reverse=True)


def _commit_at(store: ObjectStore, name: str, generation: int) -> Commit | None:
    try:
        return Commit.decode(store.get(commit_key(name, generation)), generation)
    except NotFound:  # there is none, or another process is finishing the removal
        return None

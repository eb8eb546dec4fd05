"""The plan of commits to create in place of lost ones, kept in the store until all of them exist.

The evidence in chunks leads to another log when some of it has been rebuilt already. So the whole
plan is one object, `commits/plan`, created before anything is changed and deleted when all is done.
If the process is killed in between, the next `recover` continues with the same plan.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chunkstore.commit_log import Commit
from chunkstore.errors import AlreadyExists, Corrupt, NotFound
from chunkstore.object_keys import commit_key, damaged_commit_key, log_plan_key
from chunkstore.sealed_object import sealed, unsealed
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs.errors import Conflict

_MAGIC: Final = b"DIESELLP"
_FIXED: Final = struct.Struct("<8sHxxI")  # magic, version, number of commits
_VERSION: Final = 1
_ITEM: Final = struct.Struct("<QI")  # generation, length of the encoded commit


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Commits of one dataset in place of missing or damaged ones, or after the last known one."""

    name: str
    commits: Sequence[Commit]
    """The commits by generation."""

    def encode(self) -> bytes:
        """Return the plan as the bytes of its object."""
        parts = [_FIXED.pack(_MAGIC, _VERSION, len(self.commits))]
        for commit in self.commits:
            data = commit.encode()
            parts += [_ITEM.pack(commit.generation, len(data)), data]
        body = b"".join(parts)
        return sealed(body)

    @classmethod
    def decode(cls, name: str, data: Buffer) -> LogPlan:
        """Return the plan of these bytes. Raises `Corrupt`."""
        what = f"the plan of lost commits of {name}"
        body, (count,) = unsealed(bytes(data), _FIXED, _MAGIC, _VERSION, what, "a plan")
        commits, at = [], _FIXED.size
        for _ in range(count):
            generation, size = _ITEM.unpack_from(body, at)
            at += _ITEM.size
            commits.append(Commit.decode(body[at : at + size], generation))
            at += size
        return cls(name, commits)


def store_plan(store: ObjectStore, plan: LogPlan) -> None:
    """Store the plan, which from now on is carried out; an equal one may be there already.

    Raises `Conflict` if there is another one.
    """
    try:
        store.create(log_plan_key(plan.name), [plan.encode()])
    except AlreadyExists:
        if store.get(log_plan_key(plan.name)) != plan.encode():
            raise Conflict(
                f"another process is rebuilding the commits of {plan.name}",
                "wait until it ends, then run the same command again",
            ) from None


def stored_plan(store: ObjectStore, name: str) -> LogPlan | None:
    """Return a plan that was not finished, or None; one get.

    A damaged plan is deleted: it was never sound, or has to be made again.
    """
    try:
        return LogPlan.decode(name, store.get(log_plan_key(name)))
    except NotFound:
        return None
    except Corrupt:
        store.delete(log_plan_key(name))
        return None


def carry_out(store: ObjectStore, plan: LogPlan) -> int:
    """Create the plan's commits in order; return the number of objects moved aside.

    A damaged object in the place of a commit is moved aside before. The call may be repeated, also
    after a crash anywhere. Raises `Conflict` if a writer has committed in between: then the plan is
    deleted and has to be made again.
    """
    moved = 0
    for commit in plan.commits:
        key, data = commit_key(plan.name, commit.generation), commit.encode()
        moved += _move_aside(store, plan.name, commit, data)
        try:
            store.create(key, [data])
        except AlreadyExists:
            if store.get(key) != data:
                store.delete(log_plan_key(plan.name))
                raise Conflict(
                    f"a writer committed generation {commit.generation} of {plan.name} during the "
                    "rebuild",
                    "stop all writers, then run the same command again",
                ) from None
    store.delete(log_plan_key(plan.name))
    return moved


def _move_aside(store: ObjectStore, name: str, planned: Commit, data: bytes) -> bool:
    """Move a damaged object, or one of another dataset, out of the place of `planned`.

    Returns whether there was one. A sound commit stays.
    """
    key = commit_key(name, planned.generation)
    try:
        found = store.get(key)
    except NotFound:
        return False
    with suppress(Corrupt):
        if Commit.decode(found, planned.generation).dataset_id == planned.dataset_id:
            return False
    number = 1
    while not _is_kept(store, damaged_commit_key(name, planned.generation, number), found):
        number += 1
    store.delete(key)
    return True


def _is_kept(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Store `data` as `key` unless it exists; return whether `key` holds `data`."""
    try:
        store.create(key, [data])
    except AlreadyExists:
        return bytes(store.get(key)) == data
    return True

"""The users of a dataset: running mounts and tags, which its removal would take the files from."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.commit_log import find_dataset
from chunkstore.complete_listings import check_commits_listed
from chunkstore.leases import Lease, holding, read_leases
from chunkstore.removal import is_removed
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import Tag, current, read_tags
from dieselfs.errors import Refused

ENDING_S: Final = 2.0
"""The time that is given to a mount of this machine that was unmounted just now.

Its server deletes the lease after the unmount has returned.
"""
_POLL_S: Final = 0.1
_NAMED: Final = 4
"""The most users that the message of a refusal names."""


@dataclass(frozen=True, slots=True)
class DatasetUsers:
    """The running mounts and the tags that need a dataset's files."""

    name: str
    """The name of the dataset."""
    mounts: tuple[Lease, ...] = ()
    tags: tuple[Tag, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Reasons why tags and leases cannot be read."""

    def described(self) -> list[str]:
        """Return a phrase for each mount and tag, mounts first."""
        mounts = [f"a mount on {lease.host} (process {lease.pid})" for lease in self.mounts]
        return mounts + [f"tag {tag.name} (snapshot {tag.snapshot_id})" for tag in self.tags]

    def check_none(self) -> None:
        """Raise `Refused` if the dataset has users, or if they cannot all be read."""
        if users := self.described():
            remedies = ["unmount it"] if self.mounts else []
            remedies += [f"run `dlcmd snapshot untag {self.name} {t.name}`" for t in self.tags[:1]]
            raise Refused(
                f"dataset {self.name} is in use by {_listed(users)}",
                f"{' and '.join(remedies)}, or add --force: these lose their files",
            )
        if self.unreadable:
            raise Refused(
                f"cannot tell if dataset {self.name} is in use: {'; '.join(self.unreadable)}",
                f"remove a damaged tag with `dlcmd snapshot untag {self.name} TAG`, a lease that "
                f"no mount uses with `dlcmd gc {self.name} --unreadable-leases --delete`, or add "
                "--force",
            )


def dataset_users(store: ObjectStore, name: str, now_ns: int) -> DatasetUsers:
    """Return the users that the dataset has now; none if it does not exist or is half removed.

    Costs three listings, and one get for each tag and lease.
    """
    dataset = find_dataset(store, name)
    if dataset is None or is_removed(store, name):
        return DatasetUsers(name)
    check_commits_listed(store, name)
    tags, leases = read_tags(store, dataset), read_leases(store, dataset)
    return DatasetUsers(
        name,
        tuple(holding(leases, dataset, now_ns)),
        tuple(current(tags, dataset)),
        (*tags.damaged.values(), *leases.damaged.values()),
    )


def lasting_users(store: ObjectStore, name: str, wait_s: float = ENDING_S) -> DatasetUsers:
    """Return the users that the dataset still has after `wait_s`, or earlier if none can end."""
    deadline_s = time.monotonic() + wait_s
    while True:
        users = dataset_users(store, name, time.time_ns())
        ending = any(lease.host == socket.gethostname() for lease in users.mounts)
        if users.tags or not ending or time.monotonic() >= deadline_s:
            return users
        time.sleep(_POLL_S)


def _listed(users: Sequence[str]) -> str:
    named = list(users[:_NAMED])
    if more := len(users) - len(named):
        named.append(f"{more:,} more")
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))

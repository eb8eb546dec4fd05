"""Errors of the product, cut by what the caller does next.

    DieselFSError
    ├── UsageError            the request is wrong as written: correct it
    │   ├── AddressError      not an address of a dataset or of a path in one
    │   └── ConfigError       a URL, a profile or a variable is wrong
    ├── DirectoryNotFound     no such directory in the dataset: tell the user
    ├── SnapshotNotFound      no such snapshot, here or in the store: tell the user
    ├── NotYetSupported       named, but not built yet: tell the user
    ├── LocalFileError        a file on this machine cannot be read or written: tell the user
    ├── Refused               done on purpose not: it would delete more, or reach further, than was allowed
    ├── HistoryDamaged        commits or chunks of the dataset are lost: restore them, or go on without, knowingly
    ├── Conflict              something is in the way, or has moved on: clear it, then try again
    ├── PlanTooLarge          the memory given does not hold what the plan needs at a time: tell the user
    ├── MasterGone            the master of a task's node memory has ended: elect another, or do without
    ├── CacheFull                node memory can't keep it: read past it
    ├── PeerFailed            a peer did not answer, or not soundly: ask another source
    │   ├── PeerBusy          it works at it, and has not done it in time: ask the store, and the peer again for other things
    │   └── PeerRefused       it does not prove that it knows the secret, or speaks another protocol: tell the user, too
    ├── RegistryUnavailable  the members of a task can't be asked for: go on with those known
    ├── SsdUnavailable        the SSD tier can't be used just now: tell the user, or do without
    ├── MountError            the mount did not come about, or cannot be undone: tell the user
    │   └── MountpointBusy    something is mounted there already, or uses it
    └── PartialFailure        some of many failed, the others are done

Errors of `chunkstore` and `metadata` pass through unchanged. The command line maps all three trees to exit codes in one table,
`dieselfs.cli.exit_codes`.
"""

from __future__ import annotations


class DieselFSError(Exception):
    """Root of everything that `dieselfs` raises on purpose: what happened and, in `hint`, what to do about it."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(DieselFSError, ValueError):
    """The request makes no sense as written."""


class AddressError(UsageError):
    """Not of the form `dl://dataset[@snapshot]/path`, `dataset:path` or `dataset`."""


class ConfigError(UsageError):
    """A URL, a profile or a variable that says where things are is wrong."""


class DirectoryNotFound(DieselFSError):
    """The dataset has no directory of that path."""


class SnapshotNotFound(DieselFSError):
    """The dataset has no snapshot of that id, neither on this machine nor in the store."""


class NotYetSupported(DieselFSError):
    """Has a name and a place, but does not work yet."""


class LocalFileError(DieselFSError):
    """A file or folder on this machine cannot be read or written."""


class Refused(DieselFSError):
    """A safety limit stopped it before anything was changed."""


class HistoryDamaged(DieselFSError):
    """Commits or chunks of the dataset are missing or damaged, so that not all of it can be known."""


class Conflict(DieselFSError):
    """Something is in the way, or has moved on meanwhile."""


class PlanTooLarge(DieselFSError):
    """A group of the plan, with what must be under way, does not fit into the memory given."""


class MasterGone(DieselFSError):
    """The process that keeps a task's node memory has ended, or does not answer."""


class CacheFull(DieselFSError):
    """Node memory has no room for it: what is there stays, or is in use."""


class PeerFailed(DieselFSError):
    """A peer did not answer in time, or broke off, or sent what is not what was asked for."""


class PeerBusy(PeerFailed):
    """A peer says that it works at a request, and has done so for too long. It may be sound: its store is slow, as ours will be."""


class PeerRefused(PeerFailed):
    """The two sides do not know the same secret, are of different tasks, or speak different protocols."""


class RegistryUnavailable(DieselFSError):
    """Where the members of a task are listed can't be asked just now."""


class SsdUnavailable(DieselFSError):
    """The SSD tier does not answer, or only with errors. Readers never see this: they read the store."""


class MountError(DieselFSError):
    """A dataset cannot be mounted or unmounted."""


class MountpointBusy(MountError):
    """Something is mounted at the mountpoint, or a process uses it."""


class PartialFailure(DieselFSError):
    """Some of many items failed; each was reported, the others are done."""

"""Errors of the product, divided by what the caller does next.

    DieselFSError
    ├── UsageError            the request is wrong as written: correct it
    │   ├── AddressError      not an address of a dataset or of a path in one
    │   └── ConfigError       a URL, a profile or a variable is wrong
    ├── DirectoryNotFound     no such directory in the dataset: tell the user
    ├── SnapshotNotFound      no such snapshot, here or in the store: tell the user
    ├── NotYetSupported       named, but not implemented yet: tell the user
    ├── LocalFileError        a file on this machine cannot be read or written: tell the user
    ├── Refused               refused by a safety limit on deletion or reach
    ├── HistoryDamaged        commits or chunks are lost: restore them, or accept the loss
    ├── Conflict              something is in the way or has changed: clear it, then try again
    ├── PlanTooLarge          the memory cannot hold what the plan needs at a time: tell the user
    ├── MasterGone            the master of node memory has ended: elect another, or do without
    ├── CacheFull             node memory has no room: bypass it
    ├── PeerFailed            a peer did not answer, or answered wrongly: ask another source
    │   ├── PeerBusy          the peer took too long: ask the store now, the peer for others
    │   └── PeerRefused       the peer has another secret or protocol: also tell the user
    ├── RegistryUnavailable   the membership registry does not answer: use the known members
    ├── SsdUnavailable        the SSD tier cannot be used now: tell the user, or do without
    ├── MountError            a mount cannot be made or undone: tell the user
    │   └── MountpointBusy    something is mounted at the mountpoint already, or uses it
    └── PartialFailure        some of many items failed, the others are done

Errors of `chunkstore` and `metadata` pass through unchanged. The command line maps all three trees
to exit codes in one table, `dieselfs.cli.rendering.exit_codes`.
"""

from __future__ import annotations


class DieselFSError(Exception):
    """The root of all errors that `dieselfs` raises on purpose.

    The message says what happened and `hint` what to do about it.
    """

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(DieselFSError, ValueError):
    """The request makes no sense as written."""


class AddressError(UsageError):
    """A text is not of the form `dl://dataset[@snapshot]/path`, `dataset:path` or `dataset`."""


class ConfigError(UsageError):
    """A URL, a profile or a variable that names a place is wrong."""


class DirectoryNotFound(DieselFSError):
    """The dataset has no directory of that path."""


class SnapshotNotFound(DieselFSError):
    """The dataset has no snapshot of that id, neither on this machine nor in the store."""


class NotYetSupported(DieselFSError):
    """The feature has a name and a place, but is not implemented yet."""


class LocalFileError(DieselFSError):
    """A file or folder on this machine cannot be read or written."""


class Refused(DieselFSError):
    """A safety limit stopped the operation before anything was changed."""


class HistoryDamaged(DieselFSError):
    """Commits or chunks of the dataset are missing or damaged; not all of its content is known."""


class Conflict(DieselFSError):
    """Something is in the way, or has changed meanwhile."""


class PlanTooLarge(DieselFSError):
    """A group of the plan, with the chunks under way, does not fit into the memory given."""


class MasterGone(DieselFSError):
    """The master of a task's node memory has ended, or does not answer."""


class CacheFull(DieselFSError):
    """Node memory has no room: the cached blocks are kept or in use."""


class PeerFailed(DieselFSError):
    """A peer did not answer in time, broke off, or sent something other than the answer."""


class PeerBusy(PeerFailed):
    """A peer reports that it has worked at a request for too long.

    It may be healthy: its store is slow, as this node's will be.
    """


class PeerRefused(PeerFailed):
    """The two sides have different secrets, tasks or protocols."""


class RegistryUnavailable(DieselFSError):
    """A registry, of a task's members or of jobs, does not answer now."""


class SsdUnavailable(DieselFSError):
    """The SSD tier does not answer, or answers with errors.

    Readers never see this: they read the store.
    """


class MountError(DieselFSError):
    """A dataset cannot be mounted or unmounted."""


class MountpointBusy(MountError):
    """Something is mounted at the mountpoint, or a process uses it."""


class PartialFailure(DieselFSError):
    """Some of many items failed; each was reported, the others are done."""

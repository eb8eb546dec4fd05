"""The port of the allocation directory: decisions, declared jobs, and the leases of readers.

It is implemented by records in the Redis of the index (`redis_directory`), and by a folder in the
node's shared memory (`folder`). Leases and stamps go by the clock of the directory, that of the
server or of the node, so the clocks of readers do not matter. One thread at a time uses an object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dieselfs.allocation.directory.decisions import Decisions, IoDecision, JobEntry, Origin
from dieselfs.allocation.directory.reader_lease import ReaderLease

MAX_READERS: Final = 16_384
"""The most readers of a directory."""
MAX_JOB_READERS: Final = 1024
"""The most readers of a job."""
MAX_DECISIONS: Final = 16_384
"""The most decisions on caches, on remote IO, and the most declared jobs, each."""
SETTLED_S: Final = 4.0
"""The time within which all readers that live renew their leases in a directory that is back.

A reader asks once a second, and one that was asking when the directory came back fails for 2 s.
"""


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a reader that renews its lease."""

    io: IoDecision | None
    """The decision that holds for its job: one by hand goes before the allocator's."""
    peers: Sequence[ReaderLease]
    """The leases of the job's readers, its own included. Those of others may be old in a job of
    more than 256 readers: n of them are asked for once in n²/65,536 s.
    """
    cache_version: int
    """It changes with each decision on a cache (`Decisions.version`)."""
    has_any: bool
    """True if the directory has any decision."""
    life: int = 0
    """Another number after the directory has lost all that it had."""
    since: int = 0
    """Another number after the directory was away, or was not asked for some seconds."""
    awake_s: float = math.inf
    """The seconds since then: soon, a reader that lives has renewed its lease."""


class AllocationDirectory(Protocol):
    """Where decisions are published, and readers are seen.

    Every method raises `RegistryUnavailable` within about 2 s if the directory does not answer, or
    is full, unless it says otherwise. Records that are damaged, of a later release or from the
    future are skipped, and logged once.
    """

    def allocate_cache_size(
        self, dataset: str, dataset_id: str, size_bytes: int | None, *, origin: Origin
    ) -> None:
        """Publish how many bytes of cache a dataset may use (SiloD, Table 3).

        None withdraws the decision of this origin. Raises `ValueError` for what is out of bounds.
        """
        ...

    def allocate_remote_io(self, job: str, bytes_per_s: float | None, *, origin: Origin) -> None:
        """Publish what a job's readers may together fetch of the store (SiloD, Table 3).

        None withdraws the decision of this origin. Raises `ValueError` for what is out of bounds.
        """
        ...

    def put_job(self, entry: JobEntry) -> None:
        """Declare a job, or declare it again. Raises `ValueError` for what is out of bounds."""
        ...

    def remove_job(self, name: str) -> None:
        """Remove the declaration of a job, if it is there."""
        ...

    def jobs(self) -> list[JobEntry]:
        """Return the jobs that are declared, by name."""
        ...

    def decisions(self) -> Decisions:
        """Return all decisions."""
        ...

    def beat(self, lease: ReaderLease, lease_s: float) -> Renewal:
        """Put or renew a reader's lease. Costs one round trip."""
        ...

    def leases(self) -> list[ReaderLease]:
        """Return the leases of all readers."""
        ...

    def withdraw(self, reader: str) -> None:
        """Give up the lease of a reader of this process. Never raises."""
        ...

    def lead(self, id: str, lease_s: float) -> str:
        """Lead for `lease_s`, or renew that, unless another one leads; return the leader's id."""
        ...

    def resign(self, id: str) -> None:
        """Lead no longer, so another one may at once. Never raises."""
        ...

    def close(self) -> None:
        """Withdraw nothing, and close connections and files."""
        ...

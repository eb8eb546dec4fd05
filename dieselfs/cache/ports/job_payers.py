"""The jobs of a master's members: each pays for what it asked for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.read_turn import Payer


class JobPayers(Protocol):
    """The byte budgets of the jobs for which one process fetches a dataset.

    Thread-safe, and picklable for a helper. Implemented by
    `dieselfs.allocation.readers.job_allocations`.
    """

    def payer(self) -> ByteBudget | None:
        """Return what pays for the process's own reads; None: nobody does."""
        ...

    def serve_members(self) -> None:
        """Have each job end with its last member, as the process reads nothing for itself."""
        ...

    def join(self, job: str | None) -> Payer:
        """Return what pays for one more member of a job; None: nobody pays.

        The same job has an equal payer each time. Returns at once.
        """
        ...

    def leave(self, job: str | None) -> None:
        """Note that a member of the job has ended: call it once for each `join`."""
        ...

    def keeps_memory(
        self, set_quota: Callable[[int | None], None], held_bytes: Callable[[], int]
    ) -> None:
        """Tell `set_quota` what is allocated to node memory, and report what that holds."""
        ...

    def close(self, timeout_s: float = ...) -> None:
        """Let all reads through, and give back the leases."""
        ...


def pays_nothing() -> None:
    """Return None: the payer of reads that are free."""

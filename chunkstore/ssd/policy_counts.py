"""What a cache policy has decided, and what came of it, by dataset, bucket and job.

The rows are bounded. Requests of further datasets, buckets and jobs count to one row without names.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Final, Literal, NamedTuple, TypeAlias

MAX_ROWS: Final = 1024
Role: TypeAlias = Literal["acting", "shadow"]


class CountedRow(NamedTuple):
    """The origin of what is counted together."""

    dataset: str = ""
    bucket: str = ""
    job: str = ""


class DecidedRow(NamedTuple):
    """The origin of what the processes of a node have counted together."""

    role: Role
    policy: str
    row: CountedRow


REST: Final = CountedRow()
"""The row of all that has no row of its own."""


@dataclass(slots=True)
class PolicyCounts:
    """The bytes of one row."""

    hit_bytes: int = 0
    """Bytes that the SSD served."""
    miss_bytes: int = 0
    """Bytes that readers asked for and the SSD did not have."""
    admitted_bytes: int = 0
    """Bytes that the policy let onto the SSD."""
    refused_bytes: int = 0
    evicted_bytes: int = 0
    """Bytes that left the SSD to make room. They belong to no job."""
    reinserted_bytes: int = 0
    """Bytes of evicted regions that were written again."""
    written_bytes: int = 0
    """Bytes that the SSD was given to write, reinserted ones included. They belong to no job."""
    filled_bytes: int = 0
    """Bytes that were read from the store for the SSD alone, beyond what readers asked for."""

    @property
    def absorbed_bytes(self) -> int:
        """The bytes that the SSD kept from the store: served less fetched to fill it."""
        return self.hit_bytes - self.filled_bytes

    def add(self, other: PolicyCounts) -> None:
        """Add the other counts."""
        for field in fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CountedRows:
    """The rows of one policy in one process, and what is new since the last `take`. Thread-safe."""

    def __init__(self, limit: int = MAX_ROWS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._rows: dict[CountedRow, PolicyCounts] = {}
        self._new: dict[CountedRow, PolicyCounts] = {}

    def add(self, row: CountedRow, **counted: int) -> None:
        """Add to counts of a row, by their names. Takes about 1 µs."""
        with self._lock:
            if row not in self._rows and len(self._rows) >= self._limit:
                row = REST
            for rows in (self._rows, self._new):
                counts = rows.get(row)
                if counts is None:
                    counts = rows[row] = PolicyCounts()
                for name, length in counted.items():
                    setattr(counts, name, getattr(counts, name) + length)

    def all(self) -> Mapping[CountedRow, PolicyCounts]:
        """Return a copy of all rows."""
        with self._lock:
            return _copied(self._rows)

    def take(self) -> Mapping[CountedRow, PolicyCounts]:
        """Return what was added since the last call."""
        with self._lock:
            new, self._new = self._new, {}
        return new


def total_of(rows: Mapping[CountedRow, PolicyCounts]) -> PolicyCounts:
    """Return the sum of all rows."""
    total = PolicyCounts()
    for counts in rows.values():
        total.add(counts)
    return total


def _copied(rows: Mapping[CountedRow, PolicyCounts]) -> dict[CountedRow, PolicyCounts]:
    return {row: PolicyCounts(*astuple(counts)) for row, counts in rows.items()}

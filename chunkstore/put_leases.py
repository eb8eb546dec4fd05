"""Leases of puts: objects in the store that say which puts into a dataset are under way.

The object with the greatest number defines a lease (`numbered_objects`). Its holder creates the
next number every `BEAT_S` and deletes the lease when the put ends. A lease whose number stays the
same for `SILENT_S` belongs to a put that was killed; no clocks are compared. docs/chunk-format.md
defines the bytes.

A lease also names the chunk ids that the put draws. So a later put recognizes the chunks that a
killed one has stored and not committed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import AlreadyExists, Corrupt
from chunkstore.numbered_objects import NumberedListing, list_present
from chunkstore.object_keys import put_lease_key, puts_prefix
from chunkstore.stores.object_store import ObjectStore

FORMAT_VERSION: Final = 1
BEAT_S: Final = 10.0
"""Seconds between two renewals."""
SILENT_S: Final = 30.0
"""Seconds without a renewal after which a put counts as killed: two renewals may fail."""
MAX_TARGETS: Final = 256
"""The most targets that a lease names; a put with more names what is above them."""
MAX_BYTES: Final = 4 << 20
"""The longest lease that is read: `MAX_TARGETS` of the longest paths in base64, and the rest."""
_DIGEST_DIGITS: Final = 16


class PutState(StrEnum):
    """The work of a lease's holder."""

    WAITING = "waiting"
    """It waits for another put into the same paths."""
    RUNNING = "running"
    ENDED = "ended"
    """It has failed or was interrupted, and may have left chunks that no commit names."""


@dataclass(frozen=True, slots=True)
class PutLease:
    """One numbered object of a put's lease."""

    lease_id: str
    """32 random hexadecimal digits, one id for each put."""
    number: int
    dataset_id: bytes
    state: PutState
    host: str
    pid: int
    started_ticks: int
    """The start of the process in clock ticks since boot, as the kernel counts; 0 if unknown."""
    machine: bytes
    """The machine field of the put's chunk ids: machine, boot and container."""
    writers: tuple[bytes, ...]
    """The process fields of the put's chunk ids, one for each packing process."""
    began_ns: int
    """The time at which the put began, by its own clock."""
    written_ns: int
    targets: tuple[bytes, ...]
    """Paths of the dataset; the put changes nothing but these and what is below them."""

    def drew(self, chunk_id: ChunkId) -> bool:
        """Return whether the put drew this chunk id."""
        value = chunk_id.value
        return value[4:10] == self.machine and value[10:13] in self.writers

    def encode(self) -> bytes:
        """Return the bytes of the lease object."""
        fields = {
            "format": FORMAT_VERSION,
            "lease": self.lease_id,
            "number": self.number,
            "dataset": self.dataset_id.hex(),
            "state": self.state.value,
            "host": self.host,
            "pid": self.pid,
            "started_ticks": self.started_ticks,
            "machine": self.machine.hex(),
            "writers": [writer.hex() for writer in self.writers],
            "began_ns": self.began_ns,
            "written_ns": self.written_ns,
            "targets": [base64.b64encode(path).decode() for path in self.targets],
        }
        body = json.dumps(fields, sort_keys=True).encode()
        return body + b"\n" + xxhash.xxh3_64_hexdigest(body).encode()

    @classmethod
    def decode(cls, data: bytes, lease_id: str, number: int) -> PutLease:
        """Return the lease in `data`.

        Raise `Corrupt` unless `data` is a valid object of that lease and number.
        """
        what = f"number {number} of the put's lease {lease_id}"
        body, digest = data[: -_DIGEST_DIGITS - 1], data[-_DIGEST_DIGITS:]
        if xxhash.xxh3_64_hexdigest(body).encode() != digest:
            raise Corrupt(f"the checksum of {what} is wrong")
        try:
            fields: dict[str, Any] = json.loads(body)
            if fields["format"] != FORMAT_VERSION:
                raise Corrupt(
                    f"{what} has format {fields['format']}; this release reads {FORMAT_VERSION}"
                )
            found = cls(
                str(fields["lease"]),
                int(fields["number"]),
                bytes.fromhex(fields["dataset"]),
                PutState(fields["state"]),
                str(fields["host"]),
                int(fields["pid"]),
                int(fields["started_ticks"]),
                bytes.fromhex(fields["machine"]),
                tuple(bytes.fromhex(writer) for writer in fields["writers"]),
                int(fields["began_ns"]),
                int(fields["written_ns"]),
                tuple(base64.b64decode(path, validate=True) for path in fields["targets"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"the object of {what} is not a put's lease") from error
        if (found.lease_id, found.number) != (lease_id, number):
            raise Corrupt(f"the object of {what} contains another lease or number")
        return found


def write_put_lease(store: ObjectStore, name: str, lease: PutLease) -> None:
    """Make a lease durable by one create; the caller deletes the previous number."""
    try:
        store.create(put_lease_key(name, lease.lease_id, lease.number), [lease.encode()])
    except AlreadyExists:
        pass  # an earlier try created it and lost the answer: only the holder uses this id


def delete_put_lease(store: ObjectStore, name: str, lease_id: str, numbers: Iterable[int]) -> None:
    """Delete numbers of a lease. One delete each."""
    for number in numbers:
        store.delete(put_lease_key(name, lease_id, number))


def read_put_leases(store: ObjectStore, dataset: DatasetRef) -> NumberedListing[PutLease]:
    """Return every put's lease below the dataset's name, readable or not.

    One listing and one get for each lease.
    """
    return list_present(store, puts_prefix(dataset.name), MAX_BYTES, PutLease.decode)


def overlap(some: Sequence[bytes], others: Sequence[bytes]) -> bool:
    """Return whether a path of `some` equals, contains or lies in one of `others`."""
    return any(_contains(a, b) or _contains(b, a) for a in some for b in others)


def covers(some: Sequence[bytes], others: Sequence[bytes]) -> bool:
    """Return whether each of `others` equals or lies in a path of `some`."""
    return all(any(_contains(a, b) for a in some) for b in others)


def _contains(above: bytes, below: bytes) -> bool:
    return not above or below == above or below.startswith(above + b"/")

"""Leases: objects in the store that protect what a running mount serves from deletion.

The object with the greatest number defines a lease (`numbered_objects`): its generations, its
holder, the time of writing and the validity. The holder renews the lease by creating the next
number and deletes it when the mount ends. The lease of a killed holder expires.
docs/chunk-format.md defines the bytes.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from chunkstore.chunk_format import DatasetRef
from chunkstore.errors import AlreadyExists, Corrupt
from chunkstore.numbered_objects import NumberedListing, list_present
from chunkstore.object_keys import lease_key, leases_prefix
from chunkstore.sealed_object import sealed, unsealed
from chunkstore.stores.object_store import ObjectStore

MAGIC: Final = b"DIESELLS"
FORMAT_VERSION: Final = 1
TTL_S: Final = 3600
"""Seconds for which a lease is valid after it was written."""
BEAT_S: Final = 1200
"""Seconds between two renewals: two renewals in a row may fail."""
CLOCKS_DIFFER_S: Final = 3600
"""Seconds added to a lease's validity, because holder and reader have clocks of their own."""
MAX_GENERATIONS: Final = 4096
"""The most generations that one lease may name."""
MAX_HOST_BYTES: Final = 255
_FIXED = struct.Struct("<8sHHIQqII16s16s")
MAX_BYTES: Final = _FIXED.size + 8 * MAX_GENERATIONS + MAX_HOST_BYTES + 8
"""The longest possible lease object."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One numbered object of a lease."""

    lease_id: str
    """32 random hexadecimal digits, one id for each holder."""
    number: int
    dataset_id: bytes
    generations: tuple[int, ...]
    """The generations of the served snapshots, ascending; at most `MAX_GENERATIONS`."""
    host: str
    pid: int
    written_ns: int
    """The time of writing, by the holder's clock."""
    ttl_s: int = TTL_S

    @property
    def ends_ns(self) -> int:
        """The time, by the reader's clock, at which the lease stops protecting anything."""
        return self.written_ns + (self.ttl_s + CLOCKS_DIFFER_S) * 1_000_000_000

    def is_over(self, now_ns: int) -> bool:
        """Return whether the lease has expired at `now_ns`."""
        return now_ns >= self.ends_ns

    def encode(self) -> bytes:
        """Return the bytes of the lease object."""
        host = self.host.encode(errors="replace")[:MAX_HOST_BYTES]
        fixed = _FIXED.pack(
            MAGIC,
            FORMAT_VERSION,
            len(host),
            len(self.generations),
            self.number,
            self.written_ns,
            self.ttl_s,
            self.pid,
            self.dataset_id,
            bytes.fromhex(self.lease_id),
        )
        body = fixed + np.array(self.generations, "<u8").tobytes() + host
        return sealed(body)

    @classmethod
    def decode(cls, data: bytes, lease_id: str, number: int) -> Lease:
        """Return the lease in `data`.

        Raise `Corrupt` unless `data` is a valid object of that lease and number.
        """
        what = f"number {number} of lease {lease_id}"
        body, fields = unsealed(data, _FIXED, MAGIC, FORMAT_VERSION, what, "a lease")
        host_bytes, count, found, written_ns, ttl_s, pid, dataset_id, found_id = fields
        if count > MAX_GENERATIONS or len(body) != _FIXED.size + 8 * count + host_bytes:
            raise Corrupt(f"the length of {what} is wrong")
        if (found_id.hex(), found) != (lease_id, number):
            raise Corrupt(f"the object of {what} contains another lease or number")
        generations = tuple(np.frombuffer(body, "<u8", count, _FIXED.size).tolist())
        host = body[_FIXED.size + 8 * count :].decode(errors="replace")
        return cls(lease_id, number, dataset_id, generations, host, pid, written_ns, ttl_s)


def new_lease_id() -> str:
    """Return a new random lease id."""
    return os.urandom(16).hex()


def write_lease(store: ObjectStore, name: str, lease: Lease) -> None:
    """Make a lease durable by one create; the caller deletes the previous number."""
    try:
        store.create(lease_key(name, lease.lease_id, lease.number), [lease.encode()])
    except AlreadyExists:
        pass  # an earlier try created it and lost the answer: only the holder uses this id


def delete_lease(store: ObjectStore, name: str, lease_id: str, number: int) -> None:
    """Delete one number of a lease."""
    store.delete(lease_key(name, lease_id, number))


def read_leases(store: ObjectStore, dataset: DatasetRef) -> NumberedListing[Lease]:
    """Return every lease below the dataset's name.

    The listing includes unreadable and expired leases and those of removed datasets of that name.
    One listing and one get for each lease.
    """
    return list_present(store, leases_prefix(dataset.name), MAX_BYTES, Lease.decode)


def holding(found: NumberedListing[Lease], dataset: DatasetRef, now_ns: int) -> list[Lease]:
    """Return the dataset's own leases in `found` that have not expired."""
    return [
        lease
        for lease in found.values.values()
        if lease.dataset_id == dataset.id and not lease.is_over(now_ns)
    ]

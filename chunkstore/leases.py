"""Leases: what a running mount serves, said in the store, so that nobody deletes it meanwhile.

A lease is what its greatest number says (`numbered_objects`): generations, holder, when it was written and for how long it holds. The
holder renews it by the next number, and deletes it at its end; one that is killed leaves a lease that ends by time. Bytes:
docs/chunk-format.md.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.errors import AlreadyExists, Corrupt
from chunkstore.numbered_objects import NumberedListing, list_present
from chunkstore.object_keys import lease_key, leases_prefix
from chunkstore.stores.object_store import ObjectStore

MAGIC: Final = b"DIESELLS"
FORMAT_VERSION: Final = 1
TTL_S: Final = 3600
BEAT_S: Final = 1200
"""A lease is renewed so often: two renewals may fail."""
CLOCKS_DIFFER_S: Final = 3600
"""A lease counts so much longer than it says: holder and reader have clocks of their own."""
MAX_GENERATIONS: Final = 4096
MAX_HOST_BYTES: Final = 255
_FIXED = struct.Struct("<8sHHIQqII16s16s")
MAX_BYTES: Final = _FIXED.size + 8 * MAX_GENERATIONS + MAX_HOST_BYTES + 8


@dataclass(frozen=True, slots=True)
class Lease:
    """One number of a lease."""

    lease_id: str
    """32 hexadecimal digits, random, one for each holder."""
    number: int
    dataset_id: bytes
    generations: tuple[int, ...]
    """Of the snapshots that are served, ascending; at most `MAX_GENERATIONS`."""
    host: str
    pid: int
    written_ns: int
    """By the holder's clock."""
    ttl_s: int = TTL_S

    @property
    def ends_ns(self) -> int:
        """From when on it protects nothing, by the reader's clock."""
        return self.written_ns + (self.ttl_s + CLOCKS_DIFFER_S) * 1_000_000_000

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self.ends_ns

    def encode(self) -> bytes:
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
        return body + xxhash.xxh3_64_digest(body)

    @classmethod
    def decode(cls, data: bytes, lease_id: str, number: int) -> Lease:
        """Raises `Corrupt` unless `data` is a sound object of that lease and number."""
        what = f"number {number} of lease {lease_id}"
        body = data[:-8]
        if len(data) < _FIXED.size + 8 or not data.startswith(MAGIC):
            raise Corrupt(f"{what} is not a lease object")
        if xxhash.xxh3_64_digest(body) != data[-8:]:
            raise Corrupt(f"checksum of {what} is wrong")
        _, version, host_bytes, count, found, written_ns, ttl_s, pid, dataset_id, found_id = (
            _FIXED.unpack_from(body)
        )
        if version != FORMAT_VERSION:
            raise Corrupt(f"{what} has format {version}; this release reads {FORMAT_VERSION}")
        if count > MAX_GENERATIONS or len(body) != _FIXED.size + 8 * count + host_bytes:
            raise Corrupt(f"length of {what} is wrong")
        if (found_id.hex(), found) != (lease_id, number):
            raise Corrupt(f"{what} was asked for, but the object holds another")
        generations = tuple(np.frombuffer(body, "<u8", count, _FIXED.size).tolist())
        host = body[_FIXED.size + 8 * count :].decode(errors="replace")
        return cls(lease_id, number, dataset_id, generations, host, pid, written_ns, ttl_s)


def new_lease_id() -> str:
    return secrets.token_hex(16)


def write_lease(store: ObjectStore, name: str, lease: Lease) -> None:
    """Make a lease durable. One create; the holder deletes the number before."""
    try:
        store.create(lease_key(name, lease.lease_id, lease.number), [lease.encode()])
    except AlreadyExists:
        pass  # an earlier try that was not answered: the id is the holder's alone


def delete_lease(store: ObjectStore, name: str, lease_id: str, number: int) -> None:
    store.delete(lease_key(name, lease_id, number))


def read_leases(store: ObjectStore, dataset: DatasetRef) -> NumberedListing[Lease]:
    """Every lease below the dataset's name: readable or not, over, or of a former life. One listing and one get each."""
    return list_present(store, leases_prefix(dataset.name), MAX_BYTES, Lease.decode)


def holding(found: NumberedListing[Lease], dataset: DatasetRef, now_ns: int) -> list[Lease]:
    """The dataset's own leases of a survey that are not over."""
    return [
        lease
        for lease in found.values.values()
        if lease.dataset_id == dataset.id and not lease.is_over(now_ns)
    ]

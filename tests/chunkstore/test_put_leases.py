"""Leases of puts: their bytes, what of them is believed, and which paths meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.errors import Corrupt
from chunkstore.object_keys import put_lease_key
from chunkstore.put_leases import (
    MAX_BYTES,
    MAX_TARGETS,
    PutLease,
    PutState,
    covers,
    delete_put_lease,
    overlap,
    read_put_leases,
    write_put_lease,
)
from chunkstore.stores.memory import MemoryObjectStore

GOLDEN = Path(__file__).parents[1] / "golden/put_lease_v1.json"
DATASET = DatasetRef("pets", bytes(range(16)))
LEASE = PutLease(
    "0123456789abcdef" * 2,
    7,
    DATASET.id,
    PutState.RUNNING,
    "node-1",
    4711,
    123_456,
    b"machin",
    (b"abc", b"def"),
    1_700_000_000_000_000_000,
    1_700_000_010_000_000_000,
    (b"cat", b"caf\xe9"),
)


def test_golden_bytes() -> None:
    data = GOLDEN.read_bytes()
    assert LEASE.encode() == data
    assert PutLease.decode(data, LEASE.lease_id, 7) == LEASE


def test_what_is_not_the_lease_is_refused() -> None:
    data = LEASE.encode()
    body = data[:-17]
    other = body.replace(b'"format": 1', b'"format": 2')
    wrong = [
        (data[:-1], 7),
        (data[:40] + b"x" + data[41:], 7),
        (data, 8),
        (b"", 7),
        (b"[]\n" + xxhash.xxh3_64_hexdigest(b"[]").encode(), 7),
        (other + b"\n" + xxhash.xxh3_64_hexdigest(other).encode(), 7),
    ]
    for found, number in wrong:
        with pytest.raises(Corrupt):
            PutLease.decode(found, LEASE.lease_id, number)


def test_the_longest_lease_is_read() -> None:
    long = replace(LEASE, targets=tuple(b"%04d" % n + b"x" * 4092 for n in range(MAX_TARGETS)))
    assert len(long.encode()) <= MAX_BYTES


def test_the_greatest_number_counts_until_all_are_deleted() -> None:
    store = MemoryObjectStore()
    for number in (7, 8):
        write_put_lease(store, "pets", replace(LEASE, number=number))
    write_put_lease(store, "pets", replace(LEASE, number=8))  # again, after a lost answer
    store.create(put_lease_key("pets", "f" * 32, 1), [b"damaged"])
    found = read_put_leases(store, DATASET)
    assert [lease.number for lease in found.values.values()] == [8]
    assert list(found.damaged) == ["f" * 32]
    delete_put_lease(store, "pets", LEASE.lease_id, [7, 8])
    assert not read_put_leases(store, DATASET).values


@pytest.mark.parametrize(
    ("some", "others", "meet", "contain"),
    [
        ([b""], [b"cat"], True, True),
        ([b"cat"], [b""], True, False),
        ([b"cat"], [b"cat/a", b"cat"], True, True),
        ([b"cat/a"], [b"cat"], True, False),
        ([b"cat"], [b"cats", b"dog"], False, False),
        ([b"cat", b"dog"], [b"dog/b", b"owl"], True, False),
        ([], [b"cat"], False, False),
    ],
)
def test_paths_meet(some: list[bytes], others: list[bytes], meet: bool, contain: bool) -> None:
    assert overlap(some, others) is overlap(others, some) is meet
    assert covers(some, others) is contain


def test_a_lease_knows_its_chunk_ids() -> None:
    def drawn(machine: bytes, process: bytes) -> bool:
        return LEASE.drew(ChunkIdGenerator(machine=machine, process=process).next())

    assert drawn(b"machin", b"abc")
    assert drawn(b"machin", b"def")
    assert not drawn(b"machin", b"xyz")
    assert not drawn(b"others", b"abc")

"""Leases: their bytes, when they are over, and what of them is believed."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import create_dataset
from chunkstore.errors import Corrupt
from chunkstore.leases import (
    CLOCKS_DIFFER_S,
    MAX_BYTES,
    MAX_GENERATIONS,
    TTL_S,
    Lease,
    delete_lease,
    holding,
    new_lease_id,
    read_leases,
    write_lease,
)
from chunkstore.object_keys import lease_key
from chunkstore.stores.memory import MemoryObjectStore

NOW_NS = 1_700_000_000_000_000_000
NS = 1_000_000_000
LEASE = Lease("0123456789abcdef" * 2, 7, bytes(range(16)), (3, 9), "node-1", 4711, NOW_NS)


def test_bytes_by_the_document() -> None:
    body = b"DIESELLS" + struct.pack("<HHIQqII", 1, 6, 2, 7, NOW_NS, TTL_S, 4711)
    body += bytes(range(16)) + bytes.fromhex(LEASE.lease_id) + struct.pack("<QQ", 3, 9) + b"node-1"
    data = body + xxhash.xxh3_64(body).digest()
    assert LEASE.encode() == data
    assert Lease.decode(data, LEASE.lease_id, 7) == LEASE


def test_every_flipped_byte_and_every_length_is_found() -> None:
    data = LEASE.encode()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        for bad in (flipped, data[:at]):
            with pytest.raises(Corrupt):
                Lease.decode(bad, LEASE.lease_id, 7)
    with pytest.raises(Corrupt):
        Lease.decode(data + b"\0", LEASE.lease_id, 7)


def test_a_count_that_lies_allocates_nothing() -> None:
    body = bytearray(LEASE.encode()[:-8])
    struct.pack_into("<I", body, 12, 0xFFFFFFFF)
    with pytest.raises(Corrupt, match="length"):
        Lease.decode(bytes(body) + xxhash.xxh3_64(bytes(body)).digest(), LEASE.lease_id, 7)


@pytest.mark.parametrize(("lease_id", "number"), [("00" * 16, 7), (LEASE.lease_id, 8)])
def test_another_sound_object_is_refused(lease_id: str, number: int) -> None:
    with pytest.raises(Corrupt, match="contains another"):
        Lease.decode(LEASE.encode(), lease_id, number)


def test_the_largest_lease_fits() -> None:
    largest = replace(LEASE, generations=tuple(range(MAX_GENERATIONS)), host="ü" * 300)
    data = largest.encode()
    assert len(data) <= MAX_BYTES
    found = Lease.decode(data, LEASE.lease_id, 7)
    assert found.generations == largest.generations
    assert found.host.startswith("ü" * 100)


def test_it_counts_one_hour_longer_than_it_says() -> None:
    end_ns = NOW_NS + (TTL_S + CLOCKS_DIFFER_S) * NS
    assert not LEASE.is_over(NOW_NS)
    assert not LEASE.is_over(end_ns - 1)
    assert LEASE.is_over(end_ns)
    assert CLOCKS_DIFFER_S == 3600
    assert not LEASE.is_over(NOW_NS - 10**18)  # written by a clock that is ahead


def test_survey() -> None:
    store = MemoryObjectStore()
    ref, _ = create_dataset(store, "pets")
    mine = replace(LEASE, lease_id=new_lease_id(), dataset_id=ref.id, number=1)
    renewed = replace(mine, number=2, written_ns=NOW_NS + NS, generations=(4,))
    over = replace(mine, lease_id=new_lease_id(), written_ns=NOW_NS - 10**14)
    foreign = replace(mine, lease_id=new_lease_id(), dataset_id=bytes(16))
    for lease in (mine, renewed, over, foreign):
        write_lease(store, "pets", lease)
    bad = new_lease_id()
    store.create(lease_key("pets", bad, 1), [b"?"])
    found = read_leases(store, ref)
    assert holding(found, ref, NOW_NS) == [renewed]
    assert list(found.damaged) == [bad]
    delete_lease(store, "pets", mine.lease_id, 2)
    assert holding(read_leases(store, DatasetRef("pets", ref.id)), ref, NOW_NS) == [mine]


def test_a_write_that_was_not_answered_may_be_repeated() -> None:
    store = MemoryObjectStore()
    write_lease(store, "pets", LEASE)
    write_lease(store, "pets", LEASE)
    assert len(list(store.list(""))) == 1

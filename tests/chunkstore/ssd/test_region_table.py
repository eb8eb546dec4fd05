"""The bytes at the beginning of a region, which other versions read; and that nothing torn or
foreign is believed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.ssd.region_table import RegionTable, decode_table, encode_table, slot_bytes
from chunkstore.ssd.segments import Placed, Segment, checksums_of, is_sound

GOLDEN = Path(__file__).parents[2] / "golden/ssd_region_table_v1.bin"
SIZE = slot_bytes(64)
REGION, REGION_BYTES = 3, 4 << 20


def made(count: int = 3, generation: int = 0x1122334455667788, turn: int = 1) -> RegionTable:
    entries = []
    for number in range(count):
        segment = Segment(bytes(range(number, number + 16)), number)
        data = memoryview(bytes([number]) * (1000 * number + 1))
        checksums = checksums_of(segment, data, 32 << 10)
        entries.append((segment, Placed(REGION, 8192 + 4096 * number, len(data), checksums)))
    return RegionTable(generation, turn, bytes(range(16)), 42, tuple(entries))


def test_golden_bytes() -> None:
    """Changed? Give the table another magic: regions of the former version are then empty ones."""
    table = made()
    assert encode_table(table, SIZE) == GOLDEN.read_bytes()
    assert decode_table(REGION, GOLDEN.read_bytes() + bytes(SIZE), SIZE, REGION_BYTES) == table


@pytest.mark.parametrize("count", [0, 1, 64])
def test_what_was_encoded_is_decoded(count: int) -> None:
    table = made(count)
    assert decode_table(REGION, encode_table(table, SIZE) * 2, SIZE, REGION_BYTES) == table


def test_the_later_turn_counts_and_a_torn_one_leaves_the_other() -> None:
    early, late = made(1, turn=6), made(2, turn=7)
    slots = encode_table(early, SIZE) + encode_table(late, SIZE)
    assert decode_table(REGION, slots, SIZE, REGION_BYTES) == late
    torn = slots[: SIZE + SIZE // 2] + bytes(SIZE // 2)
    assert decode_table(REGION, torn, SIZE, REGION_BYTES) == early
    assert decode_table(REGION, slots[:SIZE], SIZE, REGION_BYTES) == early


def test_damage_anywhere_is_found() -> None:
    slot = encode_table(made(), SIZE)
    chosen = random.Random(1)
    for at in [*range(300), *(chosen.randrange(SIZE) for _ in range(300))]:
        damaged = bytearray(slot)
        damaged[at] ^= 1 << chosen.randrange(8)
        assert decode_table(REGION, bytes(damaged) + bytes(SIZE), SIZE, REGION_BYTES) is None


def test_an_entry_that_lies_beyond_the_region_is_not_believed() -> None:
    segment, placed = made().entries[0]
    table = replace(made(), entries=((segment, replace(placed, offset=REGION_BYTES)),))
    assert decode_table(REGION, encode_table(table, SIZE) * 2, SIZE, REGION_BYTES) is None


def test_a_checksum_is_of_bytes_and_of_what_they_are() -> None:
    data, block = memoryview(random.Random(2).randbytes(100_000)), 32 << 10
    segment = Segment(b"c" * 16, 7)
    checksums = checksums_of(segment, data, block)
    assert is_sound(segment, 0, data, checksums, block)
    assert is_sound(segment, 1, data[block : 2 * block], checksums, block)
    assert not is_sound(segment, 2, data[block : 2 * block], checksums, block)
    assert not is_sound(Segment(b"c" * 16, 8), 0, data, checksums, block)
    assert not is_sound(Segment(b"d" * 16, 7), 0, data, checksums, block)

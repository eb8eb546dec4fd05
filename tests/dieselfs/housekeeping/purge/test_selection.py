from __future__ import annotations

import random

import pytest

from chunkstore.chunk_id import ChunkId
from dieselfs.housekeeping.purge.selection import ChunkFill, choose, rounds, target_of
from metadata.records import ChunkRecord

MIB = 1 << 20


def chunk_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def record(files: int, dead: int, size: int = 1000, *, bare: int = 0) -> ChunkRecord:
    """Of `files` files of `size` bytes the first `dead` are holes; and `bare` entries without
    content."""
    entries = files + bare
    return ChunkRecord(
        generation=2,
        updated_ns=0,
        head_bytes=100 + 60 * entries,
        payload_bytes=files * size,
        entry_count=entries,
        file_count=files,
        deleted_count=dead,
        deleted_bytes=dead * size,
        deleted=bytes((entries + 7) // 8),
    )


def chosen_of(records: list[ChunkRecord], leave: float = 0.01, small: int = 0) -> list[int]:
    chunks = {chunk_id(number): record for number, record in enumerate(records)}
    return [int.from_bytes(fill.id.value, "big") for fill in choose(chunks, leave, small)]


def test_the_emptiest_come_first_until_few_holes_are_left() -> None:
    records = [record(100, 1), record(100, 90), record(100, 0), record(100, 40), record(100, 2)]
    assert chosen_of(records, 0) == [1, 3, 4, 0]
    assert chosen_of(records, 0.005) == [1, 3, 4]
    assert chosen_of(records, 0.1) == [1, 3]
    assert chosen_of(records, 1) == []


@pytest.mark.parametrize("leave", [0, 0.01, 0.1])
def test_what_is_left_is_within_the_bound(leave: float) -> None:
    draw = random.Random(1)
    records = [record(100, draw.randint(0, 100)) for _ in range(200)]
    chosen = set(chosen_of(records, leave))
    fills = [ChunkFill.of(chunk_id(n), r) for n, r in enumerate(records)]
    dead = sum(r.deleted_bytes for n, r in enumerate(records) if n not in chosen)
    assert dead <= leave * sum(fill.live_bytes for fill in fills)


def test_what_is_wholly_dead_goes_whatever_may_be_left() -> None:
    assert chosen_of([record(1, 1), record(10_000, 0), record(0, 0)], 1) == [0, 2]


def test_a_large_file_alone_is_never_moved() -> None:
    large = [record(1, 0, 50 * MIB) for _ in range(20)]
    assert chosen_of([*large, record(10, 5)], 0) == [20]


def test_holes_count_in_chunks_without_content_too() -> None:
    records = [record(0, 0, bare=9), record(10, 0)]
    assert chosen_of(records, 0) == []
    dead = ChunkRecord(2, 0, 1000, 0, 10, 0, 9, 0, bytes(2))
    assert chosen_of([*records, dead], 0) == [2]


def test_small_chunks_are_merged_if_there_are_several() -> None:
    small, large = record(10, 0), record(5000, 0)
    assert chosen_of([small] * 7 + [large], 0.01, MIB) == []
    assert chosen_of([small] * 8 + [large], 0.01, MIB) == list(range(8))
    assert chosen_of([small] * 8 + [large], 0.01, 0) == []
    crowded = ChunkRecord(2, 0, 900_000, 0, 60_000, 60_000, 0, 0, bytes(7500))
    assert chosen_of([crowded] * 20, 0.01, MIB) == []


def test_rounds_are_bounded_and_keep_the_order_of_packing() -> None:
    chunks = {chunk_id(number): record(100, 1 + number % 50) for number in range(100)}
    chosen = choose(chunks, 0, 0)
    parts = list(rounds(chosen, 500_000))
    assert sorted(fill.id for part in parts for fill in part) == sorted(map(ChunkId, chunks))
    for part in parts:
        assert [fill.id for fill in part] == sorted(fill.id for fill in part)
        assert sum(fill.moved_bytes for fill in part) <= 500_000
    assert [len(part) for part in rounds(chosen, 1)] == [1] * 100


def test_the_new_chunks_are_as_large_as_the_old() -> None:
    assert target_of({}) == 4 * MIB
    assert target_of({b"a": record(10, 0)}) == 4 * MIB
    assert target_of({b"a": record(16, 0, MIB), b"b": record(1, 0, 99 * MIB)}) == 16 * MIB

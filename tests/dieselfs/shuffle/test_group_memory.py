"""The memory that a group size needs, against what the plan asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import PlanTooLarge
from dieselfs.prefetch.requirement import require_room_for
from dieselfs.shuffle.group_memory import GroupMemory, group_memory
from dieselfs.shuffle.order import ShuffleParameters
from metadata.snapshot import Snapshot
from tests.dieselfs.chunks_of import chunks_of


def all_of(snapshot: Snapshot) -> GroupMemory:
    return group_memory(snapshot, np.ones(snapshot.file_count, bool))


def test_it_is_that_of_the_largest_chunks_and_two_under_way(tmp_path: Path) -> None:
    with chunks_of([10, 50, 30, 40, 20, 10, 10, 10], tmp_path) as snapshot:
        memory = all_of(snapshot)
    assert memory.chunks == 8
    assert [memory.of(size) for size in (1, 2, 3, 8, 99)] == [150, 180, 180, 180, 180]


@pytest.mark.parametrize(
    ("memory_bytes", "group"), [(0, 0), (299, 0), (300, 1), (399, 1), (999, 7), (1000, 10)]
)
def test_the_largest_group_that_fits(tmp_path: Path, memory_bytes: int, group: int) -> None:
    with chunks_of([100] * 10, tmp_path) as snapshot:
        assert all_of(snapshot).largest_group(memory_bytes) == group


def test_no_epoch_of_a_group_that_fits_is_refused(tmp_path: Path) -> None:
    payloads = np.random.default_rng(1).integers(1, 1000, 60).tolist()
    refused = 0
    with chunks_of(payloads, tmp_path) as snapshot:
        memory = all_of(snapshot)
        for size in (1, 2, 5, 20, 59, 60):
            for seed in range(20):
                parameters = ShuffleParameters(seed, 3, size)
                require_room_for(snapshot, parameters, memory.of(size))
                try:
                    require_room_for(snapshot, parameters, memory.of(size) * 2 // 3)
                except PlanTooLarge:
                    refused += 1
    assert refused > 40  # it is not much more than what is needed


def test_chunks_read_by_ranges_need_none(tmp_path: Path) -> None:
    with chunks_of([100, 17 << 20, 100, 100, 100], tmp_path) as snapshot:
        memory = all_of(snapshot)
    assert (memory.of(1), memory.of(5)) == (300, 400)
    assert memory.largest_group(400) == 5
    with chunks_of([17 << 20, 18 << 20], tmp_path / "large") as snapshot:
        memory = all_of(snapshot)
    assert memory.of(1) == 0
    assert memory.largest_group(0) == 2


def test_chunks_of_files_that_are_not_read_need_none(tmp_path: Path) -> None:
    with chunks_of([500, 100, 100, 100, 100], tmp_path) as snapshot:
        read = np.array([False, True, True, True, True])
        memory = group_memory(snapshot, read)
    assert (memory.chunks, memory.of(1), memory.of(4)) == (4, 300, 400)

"""The position of a plan, moved by what is read."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, open_plan, write_plan
from dieselfs.prefetch.reading_position import ReadingPosition, files_between_positions
from tests.contracts.key_value_store_contract import fork

FILES = 5000


def plan_of(folder: Path, inodes: list[int], position: int = 0) -> PlanFile:
    order = np.array(inodes, np.uint32)
    plan = ReadingPlan("1-ab", order, np.array([0, len(order)]))
    return write_plan(folder, plan, position=position)


@pytest.fixture
def order() -> list[int]:
    return random.Random(1).sample(range(10_000), FILES)


@pytest.fixture
def plan(tmp_path: Path, order: list[int]) -> PlanFile:
    return plan_of(tmp_path, order)


def test_reading_in_order_moves_it_to_the_end(plan: PlanFile, order: list[int]) -> None:
    position = ReadingPosition(plan)
    prefetcher = open_plan(plan.path)
    for read, inode in enumerate(order, 1):
        position.passed(inode)
        assert read - 64 < prefetcher.position <= read
    assert prefetcher.position == FILES
    assert (position.on_plan, position.off_plan) == (FILES, 0)


@pytest.mark.parametrize(("length", "every"), [(0, 64), (1000, 64), (110 << 10, 18), (17 << 20, 1)])
def test_the_position_of_large_files_is_published_more_often(
    plan: PlanFile, order: list[int], length: int, every: int
) -> None:
    assert files_between_positions(np.full(9, length, np.uint64)) == every
    position = ReadingPosition(plan, every)
    for read, inode in enumerate(order, 1):
        position.passed(inode)
        assert read - every < plan.position <= read


def test_others_are_counted_and_move_nothing(plan: PlanFile, order: list[int]) -> None:
    position = ReadingPosition(plan)
    others = sorted(set(range(10_000)).difference(order))
    for inode in others[:500]:
        position.passed(inode)
    assert (position.on_plan, position.off_plan, plan.position) == (0, 500, 0)


def test_it_follows_readers_who_are_not_quite_in_order(plan: PlanFile, order: list[int]) -> None:
    position = ReadingPosition(plan)
    for at in range(0, FILES, 100):
        for inode in sorted(order[at : at + 100]):
            position.passed(inode)
        assert at + 36 < plan.position <= at + 100
    assert (position.on_plan, position.off_plan, plan.position) == (FILES, 0, FILES)


def test_it_follows_readers_who_leave_files_out(plan: PlanFile, order: list[int]) -> None:
    position = ReadingPosition(plan)
    for inode in order[:4000:7]:
        position.passed(inode)
    assert 3900 < plan.position <= 4000
    assert position.off_plan == 0


def test_a_resumed_plan_goes_on_where_it_was(tmp_path: Path, order: list[int]) -> None:
    plan = plan_of(tmp_path, order, position=3000)
    position = ReadingPosition(plan)
    for inode in order[3000:]:
        position.passed(inode)
    assert (position.on_plan, plan.position) == (2000, FILES)


def test_a_file_that_pads_the_plan_counts_when_its_turn_comes(tmp_path: Path) -> None:
    order = [*range(200), 5]
    plan = plan_of(tmp_path, order)
    position = ReadingPosition(plan)
    for inode in order[:10]:
        position.passed(inode)
    assert plan.position == 0  # the later place of file 5 was not taken for the present one
    for inode in order[10:]:
        position.passed(inode)
    assert (position.on_plan, position.off_plan, plan.position) == (201, 0, 201)


def test_children_move_it_on_and_never_back(plan: PlanFile, order: list[int]) -> None:
    position = ReadingPosition(plan)

    def child() -> None:
        for inode in order[:1000]:
            position.passed(inode)

    assert os.waitpid(fork(child), 0)[1] == 0
    assert 936 < plan.position <= 1000
    reached = plan.position
    for inode in order[:500]:
        position.passed(inode)
    assert plan.position == reached

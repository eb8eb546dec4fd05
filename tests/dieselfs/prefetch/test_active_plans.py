from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dieselfs.prefetch.active_plans import ActivePlans
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, open_plan, write_plan


class Rank:
    """A reader with its plan files, as others see them."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self._folder, self._first = folder, first
        self.owned: list[PlanFile] = []

    def write(
        self, files: int = 10, *, position: int = 0, after: str | None = None, snapshot: str = "1-a"
    ) -> PlanFile:
        before = (self.owned[-1].id if self.owned else "") if after is None else after
        inodes = np.arange(self._first, self._first + files, dtype=np.uint32)
        plan = ReadingPlan(snapshot, inodes, np.array([0, files // 2, files], np.int64))
        self.owned.append(write_plan(self._folder, plan, position=position, after=before))
        return open_plan(self.owned[-1].path)

    def die(self) -> None:
        self.owned.clear()


def ids(plans: Sequence[PlanFile]) -> list[str]:
    return [plan.id for plan in plans]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Rank:
    return Rank(tmp_path, first=100)


def test_one_reader_goes_through_three_epochs(rank: Rank) -> None:
    plans = ActivePlans()
    assert plans.add(rank.write())
    for epoch in range(3):
        assert plans.order().inodes.tolist() == list(range(10))
        assert plans.successors() == ()
        assert not plans.has_advanced()
        assert not plans.add(rank.write())
        assert ids(plans.successors()) == [rank.owned[epoch + 1].id]
        rank.owned[epoch].position = 10
        assert plans.position() == 10
        assert not plans.has_advanced()
        rank.owned[epoch].remove()
        assert plans.has_advanced()
        assert ids(plans.advance()) == [rank.owned[epoch].id]
        assert plans.position() == 0
    assert not plans.has_ended()
    rank.owned[-1].remove()
    assert plans.has_ended()


def test_what_was_read_of_the_next_plan_before_it_was_looked_at_counts(rank: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(rank.write())
    rank.owned[1].position = 4
    rank.owned[0].remove()
    plans.advance()
    assert plans.position() == 4
    assert plans.order().inodes.tolist() == list(range(10))


def test_a_resumed_reader_begins_where_it_was(rank: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write(position=3))
    order = plans.order()
    assert order.inodes.tolist() == list(range(3, 10))
    assert order.group_start.tolist() == [0, 2, 7]
    assert plans.position() == 0
    rank.owned[0].position = 6
    assert plans.position() == 3


def test_a_position_beyond_the_end_is_the_end(rank: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write(position=99))
    assert len(plans.order()) == 0
    assert plans.position() == 0


def test_the_slowest_of_several_counts(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(other.write())
    assert plans.order().inodes.tolist()[:4] == [0, 100, 1, 101]
    rank.owned[0].position = 7
    assert plans.position() == 0
    other.owned[0].position = 5
    assert plans.position() == 10
    other.owned[0].position = 10
    assert plans.position() == 14
    rank.owned[0].position = 10
    assert plans.position() == 20


def test_of_orders_of_unequal_length_none_is_taken_for_read_that_is_not(
    rank: Rank, other: Rank
) -> None:
    plans = ActivePlans()
    plans.add(rank.write(2))
    plans.add(other.write(6))
    order = plans.order().inodes.tolist()
    for short in range(3):
        for long in range(7):
            rank.owned[0].position, other.owned[0].position = short, long
            read = [*range(short), *range(100, 100 + long)]
            position = plans.position()
            assert set(order[:position]) <= set(read)
            assert (position == 8) == (len(read) == 8)
            prefix = next((at for at in range(8) if order[at] not in read), 8)
            assert prefix - 1 <= position <= prefix


def test_two_ranks_that_go_on_at_different_moments_go_on_together(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(other.write())
    assert not plans.add(rank.write())
    assert plans.successors() == (), "one of them has said nothing yet"
    assert not plans.add(other.write())
    following = ids(plans.successors())
    assert following == [rank.owned[1].id, other.owned[1].id]
    rank.owned[0].remove()
    assert plans.has_advanced()
    assert ids(plans.advance()) == [rank.owned[0].id, other.owned[0].id]
    assert ids(plans.current) == following
    other.owned[0].remove()
    assert not plans.has_advanced()
    assert not plans.has_ended()


def test_a_rank_that_ends_does_not_keep_the_other(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(other.write())
    plans.add(rank.write())
    other.owned[0].remove()
    assert ids(plans.successors()) == [rank.owned[1].id]
    rank.owned[0].position = 8
    assert plans.position() == 16
    rank.owned[0].remove()
    plans.advance()
    assert ids(plans.current) == [rank.owned[1].id]


def test_a_rank_that_has_no_next_plan_yet_is_followed_on(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(other.write())
    plans.add(rank.write())
    other.owned[0].position = 7
    rank.owned[0].remove()
    assert ids(plans.advance()) == [rank.owned[0].id]
    assert ids(plans.current) == [rank.owned[1].id, other.owned[0].id]
    assert plans.order().inodes.tolist() == [0, 107, 1, 108, 2, 109, *range(3, 10)]
    assert not plans.add(other.write()), "it comes after one of them"


def test_a_reader_that_was_killed_makes_way_for_the_next_though_its_file_stays(
    rank: Rank, other: Rank
) -> None:
    plans = ActivePlans()
    dead = rank.write()
    plans.add(dead)
    plans.add(other.write())
    rank.owned[0].position = 2
    other.owned[0].position = 6
    assert plans.position() == 4
    rank.die()
    assert dead.path.exists()
    assert plans.position() == 12
    again = Rank(dead.path.parent.parent, first=200)
    assert plans.add(again.write())
    assert ids(plans.current) == [other.owned[0].id, again.owned[0].id]


def test_a_new_run_after_a_killed_one_is_alone(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(rank.write())
    rank.die()
    assert plans.has_ended()
    assert not plans.has_advanced()
    assert plans.add(other.write())
    assert ids(plans.current) == [other.owned[0].id]
    assert plans.order().inodes.tolist() == list(range(100, 110))


def test_successors_of_successors_are_known_before_anybody_looks(rank: Rank) -> None:
    """A reader may have gone on and announced the epoch after the next between two looks."""
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(rank.write())
    rank.owned[0].remove()
    assert not plans.add(rank.write())
    assert plans.has_advanced()
    plans.advance()
    assert ids(plans.current) == [rank.owned[1].id]
    assert ids(plans.successors()) == [rank.owned[2].id]


def test_plans_that_were_prepared_and_taken_back_are_not_gone_on_to(rank: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    plans.add(rank.write())
    rank.owned[1].remove()
    assert plans.successors() == ()
    rank.owned[0].remove()
    assert not plans.has_advanced()
    assert plans.has_ended()


def test_a_plan_of_another_snapshot_replaces_those_before(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    assert plans.add(other.write(snapshot="2-b"))
    assert ids(plans.current) == [other.owned[0].id]
    assert plans.add(rank.write(snapshot="3-c")), "though it says that it comes after one"
    assert ids(plans.current) == [rank.owned[1].id]


def test_plans_are_known_by_their_ids(rank: Rank) -> None:
    plans = ActivePlans()
    first, second = rank.write(), rank.write()
    assert first not in plans
    plans.add(first)
    plans.add(second)
    assert open_plan(first.path) in plans
    assert open_plan(second.path) in plans


def test_a_copy_is_independent(rank: Rank, other: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    copy = plans.copy()
    copy.add(other.write())
    copy.add(rank.write())
    assert len(plans) == 1
    assert plans.successors() == ()
    assert plans.position() == copy.position() == 0


def test_plans_that_came_and_went_between_two_looks_are_passed_over(rank: Rank) -> None:
    plans = ActivePlans()
    plans.add(rank.write())
    for epoch in range(3):
        plans.add(rank.write())
        rank.owned[epoch].remove()
    assert plans.has_advanced()
    assert not plans.has_ended()
    assert ids(plans.successors()) == [rank.owned[3].id]
    plans.advance()
    assert ids(plans.current) == [rank.owned[3].id]

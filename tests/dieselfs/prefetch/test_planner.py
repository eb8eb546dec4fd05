"""Which plans are read now, and which come next: decisions from values, without threads and
files."""

from collections.abc import Iterable

import pytest

from dieselfs.errors import PlanTooLarge
from dieselfs.prefetch.planner import ActivePlans, Planner, Reader, WantedPrefetch
from dieselfs.prefetch.plans import ListedPlan, Plan, Seen
from dieselfs.prefetch.requirement import MemoryNeed
from dieselfs.prefetch.window import PlannedOrder
from dieselfs.shuffle.order import ShuffleParameters
from dieselfs.shuffle.shuffle_lists import ListedOrder
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.dieselfs.prefetch.scripted_memory import MadePlan

SNAPSHOT = MadeSnapshot.even(chunks=50, files=4, file_bytes=100)


class Rank:
    """A reader with its plans."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self.owned: list[MadePlan] = []

    def write(
        self,
        files: int = 10,
        *,
        position: int = 0,
        after: str | None = None,
        snapshot: MadeSnapshot = SNAPSHOT,
    ) -> MadePlan:
        before = (self.owned[-1].id if self.owned else "") if after is None else after
        inodes = range(self._first, self._first + files)
        groups = [0, files // 2, files]
        self.owned.append(MadePlan(snapshot, inodes, groups, after=before, start_at=position))
        return self.owned[-1]

    def leave(self, epoch: int) -> None:
        self.owned[epoch].is_read = False


class Plans:
    """Active plans that are replaced by each decision, as the planner does."""

    def __init__(self) -> None:
        self.active = ActivePlans()

    @property
    def seen(self) -> dict[str, Seen]:
        return {plan.id: plan.look() for plan in self.active.known}

    def add(self, plan: Plan) -> bool:
        """True if it is read beside the current ones."""
        self.active = self.active.add(plan, {**self.seen, plan.id: plan.look()})
        return plan in self.current

    def decide(self, *, at_end: bool = False) -> list[Plan]:
        self.active = self.active.decide(self.seen, at_end=at_end)
        return self.current

    @property
    def current(self) -> list[Plan]:
        return [reader.plan for reader in self.active.readers]

    @property
    def successors(self) -> list[Plan]:
        readers = self.active.successors(self.seen)
        assert all(reader.start == 0 for reader in readers)
        return [reader.plan for reader in readers]

    @property
    def order(self) -> list[int]:
        inodes: list[int] = PlannedOrder.of(self.active.readers).inodes.tolist()
        return inodes


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def other() -> Rank:
    return Rank(first=100)


def made(*plans: Plan) -> Plans:
    found = Plans()
    for plan in plans:
        found.add(plan)
    return found


def test_one_reader_goes_through_three_epochs(rank: Rank) -> None:
    plans = made(rank.write())
    for epoch in range(3):
        assert plans.order == list(range(10))
        assert plans.successors == []
        assert plans.decide() == [rank.owned[epoch]]
        assert not plans.add(rank.write())
        assert plans.successors == [rank.owned[epoch + 1]]
        rank.owned[epoch].at = 10
        assert plans.decide() == [rank.owned[epoch]], "its reader may still map chunks"
        rank.leave(epoch)
        assert plans.decide() == [rank.owned[epoch + 1]]
    rank.leave(-1)
    assert plans.decide() == []


def test_readers_whose_end_is_known_go_on_though_their_plans_are_there(rank: Rank) -> None:
    plans = made(rank.write())
    assert plans.decide(at_end=True) == [rank.owned[0]], "there is nothing to go on to"
    plans.add(rank.write())
    assert plans.decide(at_end=True) == [rank.owned[1]]


def test_the_next_plan_is_read_as_a_whole_though_its_reader_has_begun(rank: Rank) -> None:
    plans = made(rank.write(), rank.write())
    rank.owned[1].at = 4
    rank.leave(0)
    plans.decide()
    assert plans.order == list(range(10))
    assert plans.active.readers == (Reader(rank.owned[1], 0),)


def test_a_resumed_reader_begins_where_it_was(rank: Rank) -> None:
    plans = made(rank.write(position=3))
    assert plans.order == list(range(3, 10))
    assert plans.active.readers[0].start == 3


def test_a_position_beyond_the_end_is_the_end(rank: Rank) -> None:
    plans = made(rank.write(position=99))
    assert plans.order == []


def test_two_ranks_that_go_on_at_different_moments_go_on_together(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), other.write())
    assert plans.order[:4] == [0, 100, 1, 101]
    assert not plans.add(rank.write())
    assert plans.successors == [], "one of them has said nothing yet"
    assert not plans.add(other.write())
    following = [rank.owned[1], other.owned[1]]
    assert plans.successors == following
    rank.leave(0)
    assert plans.decide() == following
    other.leave(0)
    assert plans.decide() == following


def test_a_rank_that_ends_does_not_keep_the_other(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), other.write(), rank.write())
    other.leave(0)
    assert plans.successors == [rank.owned[1]]
    rank.leave(0)
    assert plans.decide() == [rank.owned[1]]


def test_a_rank_that_has_no_next_plan_yet_is_followed_on(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), other.write(), rank.write())
    other.owned[0].at = 7
    rank.leave(0)
    assert plans.decide() == [rank.owned[1], other.owned[0]]
    assert plans.order == [0, 107, 1, 108, 2, 109, *range(3, 10)]
    assert not plans.add(other.write()), "it comes after one of them"


def test_a_reader_that_was_killed_makes_way_for_the_next(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), other.write())
    rank.leave(0)
    assert plans.decide() == [rank.owned[0], other.owned[0]], "the other goes on as before"
    again = Rank(first=150)
    assert plans.add(again.write())
    assert plans.current == [other.owned[0], again.owned[0]]


def test_a_new_run_after_a_killed_one_is_alone(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), rank.write())
    rank.leave(0)
    rank.leave(1)
    assert plans.add(other.write())
    assert plans.current == [other.owned[0]]
    assert plans.order == list(range(100, 110))


def test_readers_that_were_killed_leave_no_plan(rank: Rank) -> None:
    plans = made(rank.write(), rank.write())
    rank.leave(0)
    rank.leave(1)
    assert plans.decide() == []


def test_successors_of_successors_are_known_before_anybody_looks(rank: Rank) -> None:
    """A reader may have gone on and announced the epoch after the next between two looks."""
    plans = made(rank.write(), rank.write())
    rank.leave(0)
    assert not plans.add(rank.write())
    assert plans.decide() == [rank.owned[1]]
    assert plans.successors == [rank.owned[2]]


def test_plans_that_were_prepared_and_taken_back_are_not_gone_on_to(rank: Rank) -> None:
    plans = made(rank.write(), rank.write())
    rank.leave(1)
    assert plans.successors == []
    rank.leave(0)
    assert plans.decide() == []


def test_plans_that_came_and_went_between_two_looks_are_passed_over(rank: Rank) -> None:
    plans = made(rank.write())
    for epoch in range(3):
        plans.add(rank.write())
        rank.leave(epoch)
    assert plans.successors == [rank.owned[3]]
    assert plans.decide() == [rank.owned[3]]


def test_a_plan_of_another_snapshot_replaces_those_before(rank: Rank, other: Rank) -> None:
    second, third = (MadeSnapshot.even(50, 4, 100, id=name) for name in ("2-b", "3-c"))
    plans = made(rank.write())
    assert plans.add(other.write(snapshot=second))
    assert plans.current == [other.owned[0]]
    assert plans.add(rank.write(snapshot=third)), "though it says that it comes after one"
    assert plans.current == [rank.owned[1]]


def test_a_refused_plan_is_neither_read_nor_gone_on_to(rank: Rank, other: Rank) -> None:
    plans = made(rank.write(), other.write(), rank.write(), other.write())
    plans.active = plans.active.refuse(plans.active.successors(plans.seen))
    assert plans.successors == []
    assert plans.decide(at_end=True) == [rank.owned[0], other.owned[0]]
    plans.active = plans.active.refuse(plans.active.readers[:1])
    assert plans.decide() == [other.owned[0]]


# Lists, whose readers report nothing


def listed(epoch: int = 0, *, seed: int = 1, rank: int = 0, world: int = 1) -> ListedPlan:
    parameters = ShuffleParameters(seed, epoch, 4, rank, world)
    return ListedPlan(ListedOrder(SNAPSHOT.as_snapshot(), parameters))


def ids(plans: Iterable[Plan]) -> list[str]:
    return [plan.id for plan in plans]


def test_the_next_epoch_of_a_list_follows_by_itself() -> None:
    plans = made(listed(3))
    assert plans.decide() == [plans.current[0]]
    for epoch in (4, 5):
        assert ids(plans.successors) == [listed(epoch).id]
        assert ids(plans.decide(at_end=True)) == [listed(epoch).id]
    assert plans.order == listed(5).order.inodes.tolist()


class TestPlanner:
    MEMORY = 100 * 400

    def plans(self, planner: Planner) -> list[str]:
        return ids(reader.plan for reader in planner.readers)

    def test_a_list_that_is_read_again_changes_nothing(self) -> None:
        planner = Planner()
        assert planner.add(listed(), self.MEMORY)
        before = planner.readers
        assert not planner.add(listed(), self.MEMORY)
        assert planner.readers is before

    def test_who_reads_the_next_list_has_gone_on_and_the_other_ranks_with_it(self) -> None:
        planner = Planner()
        for rank in (0, 1):
            planner.add(listed(rank=rank, world=2), self.MEMORY)
        following = planner.decide(()).successors
        planner.add(listed(1, rank=1, world=2), self.MEMORY)
        assert planner.readers == following
        planner.add(listed(1, rank=0, world=2), self.MEMORY)
        assert planner.readers == following

    def test_who_reads_another_epoch_of_the_list_begins_again(self) -> None:
        planner = Planner()
        planner.add(listed(), self.MEMORY)
        planner.add(listed(7), self.MEMORY)
        assert self.plans(planner) == [listed(7).id]

    def test_a_list_of_another_job_ends_the_one_before_even_if_it_is_refused(self) -> None:
        planner = Planner()
        planner.add(listed(), self.MEMORY)
        planner.add(listed(seed=2), self.MEMORY)
        assert self.plans(planner) == [listed(seed=2).id]
        large = listed(seed=3)
        large.need = MemoryNeed(self.MEMORY + 1, 400)
        with pytest.raises(PlanTooLarge):
            planner.add(large, self.MEMORY)
        assert self.plans(planner) == []

    def test_an_announced_plan_ends_the_lists(self, rank: Rank) -> None:
        planner = Planner()
        planner.add(listed(), self.MEMORY)
        plan = rank.write()
        planner.add(plan, self.MEMORY)
        assert self.plans(planner) == [plan.id]

    def test_it_says_once_that_it_needs_a_prefetcher(self, rank: Rank) -> None:
        planner = Planner()
        assert planner.add(rank.write(), self.MEMORY)
        assert not planner.add(rank.write(), self.MEMORY)
        rank.leave(0)
        assert planner.decide(()) == WantedPrefetch((Reader(rank.owned[1]),), ())
        rank.leave(1)
        assert planner.decide(()) == WantedPrefetch((), ())
        assert planner.add(rank.write(), self.MEMORY)

    def test_an_end_counts_for_the_plans_that_it_was_seen_of(self, rank: Rank) -> None:
        planner = Planner()
        for _ in range(3):
            planner.add(rank.write(), self.MEMORY)
        first = planner.readers
        assert planner.decide(first).readers == (Reader(rank.owned[1]),)
        assert planner.decide(first).readers == (Reader(rank.owned[1]),)

    def test_a_closed_one_takes_no_plan(self, rank: Rank) -> None:
        planner = Planner()
        planner.close()
        assert not planner.add(rank.write(), self.MEMORY)
        assert planner.readers == ()

    def test_readers_share_the_memory(self, rank: Rank, other: Rank) -> None:
        planner = Planner()

        def needing(plan: MadePlan) -> MadePlan:
            plan.needs = MemoryNeed(600, 400)
            return plan

        planner.add(needing(rank.write()), 1199)
        with pytest.raises(PlanTooLarge, match="for 2 readers"):
            planner.add(needing(other.write()), 1199)
        assert self.plans(planner) == [rank.owned[0].id]
        planner.add(needing(other.write(after="")), 1200)
        assert len(planner.readers) == 2

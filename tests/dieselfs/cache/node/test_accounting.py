"""Where the bytes are, against a model that knows of every file and every map."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.cache.node.accounting import PATIENCE_S, CacheAccounting
from dieselfs.cache.node.block_eviction import PolicyName, policy_of
from dieselfs.cache.node.planned_eviction import FarthestNextUse, KnownOrder


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ledger_of(
    budget: int, policy: PolicyName = "uniform", clock: Clock | None = None
) -> CacheAccounting:
    return CacheAccounting(budget, policy_of(policy), clock or Clock())


def load(accounting: CacheAccounting, names: str, length: int = 1, ahead: bool = False) -> str:
    """Reserve and keep each; who has left for them."""
    left = ""
    for name in names:
        asked = accounting.reserve(name, length, ahead=ahead)
        left += "".join(asked.evicted)
        if asked.granted:
            accounting.keep(name)
    return left


def test_room_is_reserved_before_it_is_filled() -> None:
    accounting = ledger_of(10)
    assert accounting.reserve("a", 6, ahead=False).granted
    assert (accounting.taken_bytes, accounting.reserved_bytes) == (6, 6)
    assert not accounting.reserve("b", 5, ahead=False).granted
    assert accounting.reserve("c", 4, ahead=False).granted
    accounting.keep("a")
    accounting.drop("c")
    assert (accounting.taken_bytes, accounting.reserved_bytes) == (6, 0)
    assert "a" in accounting
    assert "c" not in accounting


def test_what_can_not_be_granted_evicts_nothing() -> None:
    accounting = ledger_of(10, "lru")
    load(accounting, "abcd", 2)
    assert accounting.reserve("e", 2, ahead=False).granted
    assert load(accounting, "x", 11) == "", "more than the budget"
    assert load(accounting, "y", 9) == "", "more than all that may leave"
    assert load(accounting, "z", 8) == "abcd"


def test_evicted_bytes_count_until_they_are_unmapped() -> None:
    accounting = ledger_of(2, "lru")
    load(accounting, "ab")
    accounting.map(1, "a")
    accounting.map(2, "a")
    accounting.map(1, "a")
    accounting.use("b")
    asked = accounting.reserve("c", 1, ahead=False)
    assert (asked.granted, asked.evicted, asked.room_expected) == (False, ["a"], True)
    assert accounting.taken_bytes == 2
    assert load(accounting, "c") == "", "what has been evicted for it will do"
    accounting.unmap(1, "a")
    accounting.unmap(2, "a")
    assert accounting.taken_bytes == 2
    accounting.unmap(1, "a")
    assert accounting.taken_bytes == 1
    assert load(accounting, "c") == ""
    assert "c" in accounting


def test_who_does_not_unmap_in_time_is_not_waited_for() -> None:
    clock = Clock()
    accounting = ledger_of(2, "lru", clock)
    load(accounting, "ab")
    accounting.map(1, "a")
    accounting.use("b")
    assert load(accounting, "c") == "a"
    clock.now = PATIENCE_S + 0.1
    assert load(accounting, "c") == "b"
    assert "c" in accounting


def test_a_member_that_leaves_maps_nothing() -> None:
    accounting = ledger_of(3)
    load(accounting, "abc")
    for name in "aabb":
        accounting.map(1, name)
    accounting.map(2, "b")
    for name in "abc":
        assert accounting.evict(name)
    assert not accounting.evict("a")
    assert accounting.taken_bytes == 2
    accounting.unmap_all(1)
    assert accounting.taken_bytes == 1
    accounting.unmap_all(1)
    accounting.unmap(1, "b")
    accounting.unmap_all(2)
    assert accounting.taken_bytes == 0


def test_a_piece_and_its_successor_are_two_files() -> None:
    accounting = ledger_of(10)
    load(accounting, "a")
    accounting.map(1, "a")
    accounting.evict("a")
    load(accounting, "a")
    accounting.map(1, "a")
    assert accounting.taken_bytes == 2
    accounting.unmap(1, "a")
    assert accounting.taken_bytes == 1
    assert "a" in accounting
    accounting.evict("a")
    assert accounting.taken_bytes == 1
    accounting.unmap(1, "a")
    assert accounting.taken_bytes == 0


def test_a_map_may_be_told_before_the_piece_is_kept_and_after_it_has_left() -> None:
    accounting = ledger_of(10)
    assert accounting.reserve("a", 3, ahead=True).granted
    accounting.map(1, "a")
    accounting.keep("a")
    accounting.evict("a")
    assert accounting.taken_bytes == 3
    accounting.map(2, "a")
    accounting.unmap(1, "a")
    assert accounting.taken_bytes == 3
    accounting.unmap(2, "a")
    assert accounting.taken_bytes == 0
    accounting.map(1, "a")
    assert accounting.taken_bytes == 3
    accounting.unmap_all(1)
    assert accounting.taken_bytes == 0
    accounting.map(1, "never seen")
    accounting.unmap_all(1)
    assert accounting.taken_bytes == 0


def test_a_smaller_budget_is_shrunk_to() -> None:
    accounting = ledger_of(10)
    load(accounting, "abcde", 2)
    accounting.map(1, "a")
    accounting.budget_bytes = 5
    evicted = accounting.shrink()
    assert len(evicted) == 3
    assert set(evicted) < set("bcde")  # at random, and the mapped one last
    assert accounting.taken_bytes == 4
    accounting.budget_bytes = 0
    assert accounting.shrink() == [*set("bcde") - set(evicted), "a"]
    assert accounting.taken_bytes == 2
    assert accounting.shrink() == []


def test_a_plan_counts_while_there_is_one() -> None:
    accounting = ledger_of(3)
    load(accounting, "abc")
    accounting.expect(FarthestNextUse(KnownOrder("bcxa")))
    assert load(accounting, "x") == "a"
    accounting.progress(1)
    assert load(accounting, "a") == "b"
    accounting.expect(None)
    accounting.progress(1)
    assert load(accounting, "b") == ""


def test_what_was_fetched_ahead_is_used_or_wasted() -> None:
    accounting = ledger_of(10)
    load(accounting, "abc", ahead=True)
    accounting.map(1, "a")
    accounting.map(2, "a")
    for name in "abc":
        accounting.evict(name)
    assert (accounting.prefetched_used, accounting.prefetched_wasted) == (1, 2)
    accounting.map(1, "b")  # a member that mapped it before it was evicted, and told so later
    accounting.map(2, "b")
    assert (accounting.prefetched_used, accounting.prefetched_wasted) == (2, 1)
    assert (accounting.evictions, accounting.evicted_bytes) == (3, 3)


@dataclass(eq=False)
class File:
    """In the model: one generation of a piece."""

    name: str
    length: int
    state: str = "coming"
    members: tuple[int, ...] = ()

    @property
    def takes(self) -> int:
        return self.length if self.state != "evicted" or self.members else 0


@pytest.mark.parametrize("policy", ["uniform", "lru"])
@settings(max_examples=60)
@given(data=st.data())
def test_the_books_are_right_and_the_budget_is_kept(
    policy: PolicyName, data: st.DataObject
) -> None:
    clock = Clock()
    accounting = ledger_of(20, policy, clock)
    files: list[File] = []

    def the(name: str, *states: str) -> File | None:
        return next((f for f in files if f.name == name and f.state in states), None)

    def evicted(names: object) -> None:
        assert isinstance(names, list | tuple)
        for each in names:
            file = the(each, "held")
            assert file is not None, "only what is held can leave"
            file.state = "evicted"

    for _ in range(data.draw(st.integers(1, 40))):
        name = data.draw(st.sampled_from("abcdef"))
        member = data.draw(st.integers(1, 2))
        held, coming = the(name, "held"), the(name, "coming")
        match data.draw(st.integers(0, 9)):
            case 0 | 1 | 2 if not held and not coming:
                length = data.draw(st.integers(1, 12))
                asked = accounting.reserve(name, length, ahead=data.draw(st.booleans()))
                evicted(asked.evicted)
                if asked.granted:
                    files.append(File(name, length))
            case 3 | 4 if coming:
                accounting.keep(name)
                coming.state = "held"
            case 5 if coming and not coming.members:
                accounting.drop(name)
                files.remove(coming)
            case 6 if held or coming:
                file = held or coming
                assert file is not None
                accounting.map(member, name)
                file.members += (member,)
            case 7:
                accounting.unmap(member, name)
                of_it = [f for f in files if f.name == name and member in f.members]
                if of_it:
                    left = list(of_it[0].members)
                    left.remove(member)
                    of_it[0].members = tuple(left)
            case 8:
                if data.draw(st.booleans()):
                    accounting.unmap_all(member)
                    for file in files:
                        file.members = tuple(m for m in file.members if m != member)
                elif accounting.evict(name):
                    evicted([name])
            case 9:
                clock.now += data.draw(st.sampled_from([0.1, PATIENCE_S * 2]))
                if data.draw(st.booleans()):
                    names = data.draw(st.text("abcdef", max_size=8))
                    accounting.expect(FarthestNextUse(KnownOrder(names)) if names else None)
                else:
                    accounting.progress(data.draw(st.integers(0, 8)))
        assert accounting.taken_bytes == sum(file.takes for file in files) <= 20
        assert accounting.reserved_bytes == sum(f.length for f in files if f.state == "coming")
        assert sorted(accounting.names()) == sorted(f.name for f in files if f.state == "held")

"""Where the bytes are, against a model that knows of every file and every map."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.node_memory.eviction import FarthestNextUse, PolicyName, policy_of
from dieselfs.node_memory.ledger import PATIENCE_S, Ledger


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ledger_of(budget: int, policy: PolicyName = "uniform", clock: Clock | None = None) -> Ledger:
    return Ledger(budget, policy_of(policy), clock or Clock())


def bring(ledger: Ledger, names: str, length: int = 1, ahead: bool = False) -> str:
    """Reserve and keep each; who has left for them."""
    left = ""
    for name in names:
        asked = ledger.reserve(name, length, ahead=ahead)
        left += "".join(asked.evicted)
        if asked.granted:
            ledger.keep(name)
    return left


def test_room_is_reserved_before_it_is_filled() -> None:
    ledger = ledger_of(10)
    assert ledger.reserve("a", 6, ahead=False).granted
    assert (ledger.taken_bytes, ledger.coming_bytes) == (6, 6)
    assert not ledger.reserve("b", 5, ahead=False).granted
    assert ledger.reserve("c", 4, ahead=False).granted
    ledger.keep("a")
    ledger.drop("c")
    assert (ledger.taken_bytes, ledger.coming_bytes) == (6, 0)
    assert "a" in ledger
    assert "c" not in ledger


def test_what_can_not_be_granted_evicts_nothing() -> None:
    ledger = ledger_of(10, "lru")
    bring(ledger, "abcd", 2)
    assert ledger.reserve("e", 2, ahead=False).granted
    assert bring(ledger, "x", 11) == "", "more than the budget"
    assert bring(ledger, "y", 9) == "", "more than all that may leave"
    assert bring(ledger, "z", 8) == "abcd"


def test_evicted_bytes_count_until_they_are_unmapped() -> None:
    ledger = ledger_of(2, "lru")
    bring(ledger, "ab")
    ledger.map(1, "a")
    ledger.map(2, "a")
    ledger.map(1, "a")
    ledger.use("b")
    asked = ledger.reserve("c", 1, ahead=False)
    assert (asked.granted, asked.evicted, asked.room_coming) == (False, ["a"], True)
    assert ledger.taken_bytes == 2
    assert bring(ledger, "c") == "", "what has been evicted for it will do"
    ledger.unmap(1, "a")
    ledger.unmap(2, "a")
    assert ledger.taken_bytes == 2
    ledger.unmap(1, "a")
    assert ledger.taken_bytes == 1
    assert bring(ledger, "c") == ""
    assert "c" in ledger


def test_who_does_not_unmap_in_time_is_not_waited_for() -> None:
    clock = Clock()
    ledger = ledger_of(2, "lru", clock)
    bring(ledger, "ab")
    ledger.map(1, "a")
    ledger.use("b")
    assert bring(ledger, "c") == "a"
    clock.now = PATIENCE_S + 0.1
    assert bring(ledger, "c") == "b"
    assert "c" in ledger


def test_a_member_that_leaves_maps_nothing() -> None:
    ledger = ledger_of(3)
    bring(ledger, "abc")
    for name in "aabb":
        ledger.map(1, name)
    ledger.map(2, "b")
    for name in "abc":
        assert ledger.evict(name)
    assert not ledger.evict("a")
    assert ledger.taken_bytes == 2
    ledger.leave(1)
    assert ledger.taken_bytes == 1
    ledger.leave(1)
    ledger.unmap(1, "b")
    ledger.leave(2)
    assert ledger.taken_bytes == 0


def test_a_piece_and_its_successor_are_two_files() -> None:
    ledger = ledger_of(10)
    bring(ledger, "a")
    ledger.map(1, "a")
    ledger.evict("a")
    bring(ledger, "a")
    ledger.map(1, "a")
    assert ledger.taken_bytes == 2
    ledger.unmap(1, "a")
    assert ledger.taken_bytes == 1
    assert "a" in ledger
    ledger.evict("a")
    assert ledger.taken_bytes == 1
    ledger.unmap(1, "a")
    assert ledger.taken_bytes == 0


def test_a_map_may_be_told_before_the_piece_is_kept_and_after_it_has_left() -> None:
    ledger = ledger_of(10)
    assert ledger.reserve("a", 3, ahead=True).granted
    ledger.map(1, "a")
    ledger.keep("a")
    ledger.evict("a")
    assert ledger.taken_bytes == 3
    ledger.map(2, "a")
    ledger.unmap(1, "a")
    assert ledger.taken_bytes == 3
    ledger.unmap(2, "a")
    assert ledger.taken_bytes == 0
    ledger.map(1, "a")
    assert ledger.taken_bytes == 3
    ledger.leave(1)
    assert ledger.taken_bytes == 0
    ledger.map(1, "never seen")
    ledger.leave(1)
    assert ledger.taken_bytes == 0


def test_a_smaller_budget_is_shrunk_to() -> None:
    ledger = ledger_of(10)
    bring(ledger, "abcde", 2)
    ledger.map(1, "a")
    ledger.budget_bytes = 5
    assert ledger.shrink() == ["b", "c", "d"]
    assert ledger.taken_bytes == 4
    ledger.budget_bytes = 0
    assert ledger.shrink() == ["e", "a"]
    assert ledger.taken_bytes == 2
    assert ledger.shrink() == []


def test_a_plan_counts_while_there_is_one() -> None:
    ledger = ledger_of(3)
    bring(ledger, "abc")
    ledger.expect(FarthestNextUse("bcxa"))
    assert bring(ledger, "x") == "a"
    ledger.progress(1)
    assert bring(ledger, "a") == "b"
    ledger.expect(None)
    ledger.progress(1)
    assert bring(ledger, "b") == ""


def test_what_was_fetched_ahead_is_used_or_wasted() -> None:
    ledger = ledger_of(10)
    bring(ledger, "abc", ahead=True)
    ledger.map(1, "a")
    ledger.map(2, "a")
    for name in "abc":
        ledger.evict(name)
    assert (ledger.prefetched_used, ledger.prefetched_wasted) == (1, 2)
    assert (ledger.evictions, ledger.evicted_bytes) == (3, 3)


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
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_books_are_right_and_the_budget_is_kept(
    policy: PolicyName, data: st.DataObject
) -> None:
    clock = Clock()
    ledger = ledger_of(20, policy, clock)
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
                asked = ledger.reserve(name, length, ahead=data.draw(st.booleans()))
                evicted(asked.evicted)
                if asked.granted:
                    files.append(File(name, length))
            case 3 | 4 if coming:
                ledger.keep(name)
                coming.state = "held"
            case 5 if coming and not coming.members:
                ledger.drop(name)
                files.remove(coming)
            case 6 if held or coming:
                file = held or coming
                assert file is not None
                ledger.map(member, name)
                file.members += (member,)
            case 7:
                ledger.unmap(member, name)
                of_it = [f for f in files if f.name == name and member in f.members]
                if of_it:
                    left = list(of_it[0].members)
                    left.remove(member)
                    of_it[0].members = tuple(left)
            case 8:
                if data.draw(st.booleans()):
                    ledger.leave(member)
                    for file in files:
                        file.members = tuple(m for m in file.members if m != member)
                elif ledger.evict(name):
                    evicted([name])
            case 9:
                clock.now += data.draw(st.sampled_from([0.1, PATIENCE_S * 2]))
                if data.draw(st.booleans()):
                    names = data.draw(st.text("abcdef", max_size=8))
                    ledger.expect(FarthestNextUse(names) if names else None)
                else:
                    ledger.progress(data.draw(st.integers(0, 8)))
        assert ledger.taken_bytes == sum(file.takes for file in files) <= 20
        assert ledger.coming_bytes == sum(f.length for f in files if f.state == "coming")
        assert sorted(ledger.names()) == sorted(f.name for f in files if f.state == "held")

"""The policies, each against a plain model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dieselfs.cache.node.block_eviction import (
    EvictionPolicy,
    FarthestNextUse,
    LeastRecentlyUsed,
    Uniform,
    policy_of,
)

NAMES = "abcdefgh"
NEVER = 1 << 62


def nothing_mapped(name: str) -> bool:
    return False


def victims(
    policy: EvictionPolicy,
    newcomer: str | None,
    wanted: int,
    mapped: str = "",
    ahead: bool = False,
) -> str:
    return "".join(policy.victims(newcomer, wanted, lambda name: name in mapped, ahead=ahead))


def add(policy: EvictionPolicy, names: str, *, length: int = 1, ahead: bool = False) -> None:
    for name in names:
        policy.add(name, length, ahead=ahead)


def test_uniform_lets_nothing_leave_for_a_newcomer() -> None:
    policy = policy_of("uniform")
    assert isinstance(policy, Uniform)
    add(policy, "abcd")
    policy.remove("b")
    assert victims(policy, "x", 1) == ""
    assert victims(policy, None, 2, mapped="a") == "cd"  # the budget has shrunk
    assert victims(policy, None, 9, mapped="a") == "cda"
    assert victims(policy, None, 0) == ""


def test_the_least_recently_used_leaves_first() -> None:
    policy = policy_of("lru")
    assert isinstance(policy, LeastRecentlyUsed)
    add(policy, "abcd", length=10)
    policy.use("a")
    assert victims(policy, "x", 1) == "b"
    assert victims(policy, "x", 11) == "bc"
    policy.remove("b")
    assert victims(policy, "x", 25) == "cda"
    assert victims(policy, "x", 1000) == "cda"


def test_what_waits_for_its_reader_is_not_displaced_by_what_is_fetched_ahead() -> None:
    policy = LeastRecentlyUsed()
    add(policy, "ab", ahead=True)
    add(policy, "c")
    assert victims(policy, "x", 3, ahead=True) == "c"
    assert victims(policy, "x", 3) == "abc"
    policy.use("a")
    assert victims(policy, "x", 3, ahead=True) == "ca"


def test_the_farthest_next_use_leaves_first_but_for_nothing_later() -> None:
    policy = FarthestNextUse("abcdabcd")
    add(policy, "abd")
    assert victims(policy, "c", 9) == "d"
    policy.progress(4)
    assert victims(policy, "c", 9) == "d"
    policy.progress(5)  # a is not used again
    assert victims(policy, "c", 1) == "a"
    assert victims(policy, "c", 2) == "ad"
    assert victims(policy, "x", 9) == "", "off the plan"
    assert victims(policy, "a", 9) == "", "not expected any more"
    assert victims(policy, None, 9) == "adb"


def test_of_those_never_used_again_the_unmapped_leave_first() -> None:
    policy = FarthestNextUse("z")
    add(policy, "abc")
    assert victims(policy, "z", 2, mapped="a") == "bc"
    assert victims(policy, "z", 3, mapped="a") == "bca"


# Names in capitals are owned, the others are copies.


def test_uniform_lets_copies_leave_for_what_is_owned() -> None:
    policy = policy_of("uniform", str.isupper)
    add(policy, "AbCd", length=10)
    assert victims(policy, "X", 1) == "b"
    assert victims(policy, "X", 1, mapped="b") == "d"
    assert victims(policy, "X", 11, mapped="b") == "db"
    assert victims(policy, "X", 100) == "bd", "nothing owned leaves for a newcomer"
    assert victims(policy, "x", 1) == "", "a copy displaces nothing"
    assert victims(policy, None, 25, mapped="b") == "dbA", "the budget has shrunk"


def test_of_the_least_recently_used_copies_leave_first() -> None:
    policy = policy_of("lru", str.isupper)
    add(policy, "AbCd")
    policy.use("b")
    assert victims(policy, "X", 3) == "dbA"
    assert victims(policy, None, 9) == "dbAC"
    assert victims(policy, "x", 9) == "db", "nothing owned leaves for a copy"
    add(policy, "eE", ahead=True)
    assert victims(policy, "X", 9, ahead=True) == "dbAC"


def test_with_a_plan_copies_leave_before_owned_pieces() -> None:
    policy = FarthestNextUse("xXaAbBcC", str.isupper)
    add(policy, "aAbByYzZ")
    assert victims(policy, "x", 2, mapped="y") == "zy", "copies that are not needed"
    assert victims(policy, "x", 4) == "yzba", "then copies by farthest use"
    assert victims(policy, "x", 99) == "yzbaYZBA", "then owned ones alike"
    policy.progress(4)
    assert victims(policy, "c", 99) == "yzaYZA", "nothing that is used sooner"
    assert victims(policy, None, 99) == "yzabYZAB"


def test_what_is_owned_and_not_in_the_plan_displaces_copies_that_it_does_not_need() -> None:
    policy = FarthestNextUse("ab", str.isupper)
    add(policy, "abcdE")
    assert victims(policy, "X", 99, mapped="c") == "dc"
    assert victims(policy, "x", 99) == ""


def test_a_plan_groups_anew_what_is_owned() -> None:
    owned = {"a"}
    policy = FarthestNextUse("xab", owned.__contains__)
    add(policy, "abc")
    assert victims(policy, "x", 9) == "cba"
    owned.clear()
    owned.add("c")
    assert victims(policy, "x", 9) == "cba", "as grouped so far"
    policy.regroup()
    assert victims(policy, "x", 9) == "bac"
    policy.progress(3)
    assert victims(policy, None, 9) == "abc"


def test_what_has_come_back_counts_once() -> None:
    policy = FarthestNextUse("xab")
    add(policy, "ab")
    policy.remove("b")
    add(policy, "b")
    assert victims(policy, "x", 2) == "ba"
    assert victims(policy, "x", 2) == "ba"


def test_progress_may_be_told_late_twice_or_beyond_the_end() -> None:
    policy = FarthestNextUse("abab")
    add(policy, "ab")
    policy.progress(3)
    policy.progress(1)
    assert victims(policy, "b", 9) == "a"
    policy.progress(100)
    assert victims(policy, None, 9) == "ab"
    assert victims(FarthestNextUse([]), "a", 1) == ""


@given(st.data())
def test_the_plan_chooses_as_a_search_through_the_whole_sequence_does(data: st.DataObject) -> None:
    sequence = data.draw(st.lists(st.sampled_from(NAMES), max_size=40))
    policy = FarthestNextUse(sequence)
    held: dict[str, int] = {}
    used = 0

    def next_use(name: str) -> int:
        rest = sequence[used:]
        return used + rest.index(name) if name in rest else NEVER

    for _ in range(data.draw(st.integers(0, 40))):
        name = data.draw(st.sampled_from(NAMES))
        match data.draw(st.sampled_from(["add or remove", "progress", "ask"])):
            case "add or remove" if name in held:
                del held[name]
                policy.remove(name)
            case "add or remove":
                held[name] = data.draw(st.integers(1, 5))
                policy.add(name, held[name], ahead=False)
            case "progress":
                used = min(len(sequence), used + data.draw(st.integers(0, 5)))
                policy.progress(used)
            case _ if name not in held:
                wanted = data.draw(st.integers(0, 12))
                found = policy.victims(name, wanted, nothing_mapped, ahead=False)
                check(found, {n: (next_use(n), held[n]) for n in held}, next_use(name), wanted)


def check(
    found: Sequence[str], held: dict[str, tuple[int, int]], newcomers_use: int, wanted: int
) -> None:
    """`held`: next use and length of each. Names that are never used again are equals."""
    allowed = sorted((use for use, _ in held.values() if use > newcomers_use), reverse=True)
    uses = [held[name][0] for name in found]
    assert len(set(found)) == len(found)
    assert uses == allowed[: len(uses)], "the farthest first, and none as soon as the newcomer"
    total = sum(held[name][1] for name in found)
    if total < wanted:
        assert len(uses) == len(allowed), "only if all that may leave are not enough"
    elif found:
        assert total - held[found[-1]][1] < wanted, "no more than needed"


@given(st.lists(st.sampled_from(NAMES[:6]), min_size=1, max_size=40), st.integers(1, 4))
def test_a_cache_that_asks_it_misses_as_rarely_as_any_can(sequence: list[str], room: int) -> None:
    """Belady's bound, with bypass: searched through exhaustively by states."""
    policy = FarthestNextUse(sequence)
    held: set[str] = set()
    misses = 0
    for position, name in enumerate(sequence):
        if name in held:
            policy.progress(position + 1)
            continue
        misses += 1
        policy.progress(position + 1)  # it is read past the cache; is it worth its room?
        if len(held) == room:
            for victim in policy.victims(name, 1, nothing_mapped, ahead=False):
                policy.remove(victim)
                held.remove(victim)
        if len(held) < room:
            policy.add(name, 1, ahead=False)
            held.add(name)
    assert misses == fewest_misses(sequence, room)


def fewest_misses(sequence: list[str], room: int) -> int:
    states: dict[frozenset[str], int] = {frozenset(): 0}
    for name in sequence:
        following: dict[frozenset[str], int] = {}
        for held, misses in states.items():
            if name in held:
                options, cost = [held], misses
            else:
                options, cost = [held, *(held - {out} | {name} for out in held)], misses + 1
                if len(held) < room:
                    options = [held | {name}]
            for option in options:
                following[option] = min(cost, following.get(option, NEVER))
        states = following
    return min(states.values())

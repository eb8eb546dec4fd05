"""Evictions by known orders, each against a plain model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dieselfs.cache.node.block_eviction import EvictionPolicy, Owns, nothing_owned
from dieselfs.cache.node.planned_eviction import (
    NEVER,
    FarthestNextUse,
    KnownOrder,
    MergedOrders,
)

NAMES = "abcdefgh"


def nothing_mapped(name: str) -> bool:
    return False


def victims(
    policy: EvictionPolicy, newcomer: str | None, wanted: int, mapped: str = "", ahead: bool = False
) -> str:
    return "".join(policy.victims(newcomer, wanted, lambda name: name in mapped, ahead=ahead))


def add(policy: EvictionPolicy, names: Sequence[str]) -> None:
    for name in names:
        policy.add(name, 1, ahead=False)


def planned(names: Sequence[str], owns: Owns = nothing_owned) -> FarthestNextUse:
    return FarthestNextUse(KnownOrder(names), owns)


def merged(**orders: str) -> FarthestNextUse:
    return FarthestNextUse(MergedOrders({by: KnownOrder(names) for by, names in orders.items()}))


def test_the_farthest_next_use_leaves_first_but_for_nothing_later() -> None:
    policy = planned("abcdabcd")
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
    policy = planned("z")
    add(policy, "abc")
    assert victims(policy, "z", 2, mapped="a") == "bc"
    assert victims(policy, "z", 3, mapped="a") == "bca"


def test_with_a_plan_copies_leave_before_owned_pieces() -> None:
    policy = planned("xXaAbBcC", str.isupper)
    add(policy, "aAbByYzZ")
    assert victims(policy, "x", 2, mapped="y") == "zy", "copies that are not needed"
    assert victims(policy, "x", 4) == "yzba", "then copies by farthest use"
    assert victims(policy, "x", 99) == "yzbaYZBA", "then owned ones alike"
    policy.progress(4)
    assert victims(policy, "c", 99) == "yzaYZA", "nothing that is used sooner"
    assert victims(policy, None, 99) == "yzabYZAB"


def test_what_is_owned_and_not_in_the_plan_displaces_copies_that_it_does_not_need() -> None:
    policy = planned("ab", str.isupper)
    add(policy, "abcdE")
    assert victims(policy, "X", 99, mapped="c") == "dc"
    assert victims(policy, "x", 99) == ""


def test_a_plan_groups_anew_what_is_owned() -> None:
    owned = {"a"}
    policy = planned("xab", owned.__contains__)
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
    policy = planned("xab")
    add(policy, "ab")
    policy.remove("b")
    add(policy, "b")
    assert victims(policy, "x", 2) == "ba"
    assert victims(policy, "x", 2) == "ba"


def test_progress_may_be_told_late_twice_or_beyond_the_end() -> None:
    policy = planned("abab")
    add(policy, "ab")
    policy.progress(3)
    policy.progress(1)
    assert victims(policy, "b", 9) == "a"
    policy.progress(100)
    assert victims(policy, None, 9) == "ab"
    assert victims(planned([]), "a", 1) == ""


@given(st.data())
def test_the_plan_chooses_as_a_search_through_the_whole_sequence_does(data: st.DataObject) -> None:
    sequence = data.draw(st.lists(st.sampled_from(NAMES), max_size=40))
    policy = planned(sequence)
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
    policy = planned(sequence)
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


def test_of_two_orders_the_soonest_use_counts() -> None:
    policy = merged(one="abcdef", two="fedcba")
    add(policy, "abcdef")
    assert victims(policy, "b", 9) == "cd", "the middle is used last"
    policy.progress(2, "one")
    policy.progress(2, "two")
    assert victims(policy, None, 2) == "af", "used by one, and last by the other"
    policy.progress(6, "one")
    policy.progress(6, "two")
    assert sorted(victims(policy, None, 9)) == list("abcdef"), "not used again"


def test_a_use_is_the_sooner_the_faster_its_reader_is() -> None:
    names = [str(number) for number in range(200)]
    orders = {"fast": KnownOrder(names), "slow": KnownOrder([*names[100:], *names[:100]])}
    policy = FarthestNextUse(MergedOrders(orders))
    add(policy, ["70", "130"])
    assert victims(policy, None, 1) == "70", "as fast as each other while nothing is known"
    for turn in range(1, 11):
        policy.progress(3 * turn, "fast")
        policy.progress(turn, "slow")
    assert victims(policy, None, 1) == "130", "(130 - 110) * 4 after (70 - 30) * 4 / 3"


def test_what_a_member_that_pauses_needs_later_leaves_first() -> None:
    orders = {"reads": KnownOrder("abcdefgh" * 100), "pauses": KnownOrder("xy")}
    policy = FarthestNextUse(MergedOrders(orders))
    add(policy, "hy")
    assert victims(policy, "a", 9) == "hy"
    policy.progress(400, "reads")
    assert victims(policy, "a", 9) == "yh"


def test_rates_are_kept_when_orders_are_told_again() -> None:
    orders = {"fast": KnownOrder("abcd" * 25), "slow": KnownOrder("wxyz" * 25)}
    policy = FarthestNextUse(MergedOrders(orders))
    policy.progress(90, "fast")
    policy.progress(2, "slow")
    told = KnownOrder("efghijkl")
    told.recent_uses = orders["fast"].recent_uses
    policy = FarthestNextUse(MergedOrders({"fast": told, "slow": orders["slow"]}))
    add(policy, "lw")
    assert victims(policy, None, 1) == "w", "two uses of the slow one take longer than seven"

"""The policies that know no order."""

from __future__ import annotations

import pytest

from dieselfs.cache.node.block_eviction import (
    EvictionPolicy,
    LeastRecentlyUsed,
    PolicyName,
    Uniform,
    policy_of,
)


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
    assert sorted(victims(policy, None, 2, mapped="a")) == ["c", "d"]  # the budget has shrunk
    assert sorted(victims(policy, None, 9, mapped="a")[:2]) == ["c", "d"]
    assert victims(policy, None, 9, mapped="a")[2:] == "a"
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


# Names in capitals are owned, the others are copies.


def test_uniform_lets_copies_leave_for_what_is_owned() -> None:
    policy = policy_of("uniform", str.isupper)
    add(policy, "AbCd", length=10)
    assert victims(policy, "X", 1) == "b"
    assert victims(policy, "X", 1, mapped="b") == "d"
    assert victims(policy, "X", 11, mapped="b") == "db"
    assert victims(policy, "X", 100) == "bd", "nothing owned leaves for a newcomer"
    assert victims(policy, "x", 1) == "", "a copy displaces nothing"
    shrunk = victims(policy, None, 25, mapped="b")  # the budget has shrunk
    assert (shrunk[:2], shrunk[2] in "AC") == ("db", True)


def test_of_the_least_recently_used_copies_leave_first() -> None:
    policy = policy_of("lru", str.isupper)
    add(policy, "AbCd")
    policy.use("b")
    assert victims(policy, "X", 3) == "dbA"
    assert victims(policy, None, 9) == "dbAC"
    assert victims(policy, "x", 9) == "db", "nothing owned leaves for a copy"
    add(policy, "eE", ahead=True)
    assert victims(policy, "X", 9, ahead=True) == "dbAC"


@pytest.mark.parametrize("name", ["uniform", "lru"])
def test_a_block_leaves_once_though_the_shares_change_meanwhile(name: PolicyName) -> None:
    owned = {"c"}

    def becomes_owned(block: str) -> bool:
        was_owned = block in owned
        owned.add(block)
        return was_owned

    policy = policy_of(name, becomes_owned)
    add(policy, "abc", length=10)
    assert sorted(victims(policy, None, 100)) == ["a", "b", "c"]

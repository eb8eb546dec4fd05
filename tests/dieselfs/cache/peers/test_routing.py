"""Every case of up to four members: whom a reader and an owner ask, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from dieselfs.cache.peers.routing import Role, Step, owner_of, steps
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

MEMBERS = [Member(name, PeerAddress(name, 1), 1) for name in "abcd"]


def cases() -> Iterator[tuple[tuple[Member, ...], str, frozenset[str]]]:
    """(ranked, me, up): every order of every subset, me anywhere or without a share, every set of
    those that are up."""
    for count in range(5):
        for ranked in itertools.permutations(MEMBERS, count):
            for me in "abcdz":
                others = [member.id for member in ranked if member.id != me]
                for size in range(len(others) + 1):
                    for up in itertools.combinations(others, size):
                        yield ranked, me, frozenset(up)


def asked(ranked: tuple[Member, ...], me: str, up: frozenset[str], role: Role) -> list[Step]:
    """All questions, when each of them fails and opens the breaker of who was asked."""
    open_breakers: set[str] = set()

    def is_up(member: str) -> bool:
        assert member != me
        return member in up and member not in open_breakers

    found = []
    for step in steps(ranked, me, is_up, role):
        open_breakers.add(step.peer.id)
        found.append(step)
    return found


def test_a_reader_asks_those_that_own_it_and_rank_before_itself() -> None:
    count = 0
    for ranked, me, up in cases():
        names = [member.id for member in ranked]
        before_me = names[: names.index(me)] if me in names else names
        expected = [name for name in before_me if name in up][:2]
        found = asked(ranked, me, up, "reader")
        assert [step.peer.id for step in found] == expected
        assert all(step.may_fetch for step in found)
        count += 1
    assert count > 1000


def test_an_owner_asks_only_the_best_other_and_only_what_it_holds() -> None:
    for ranked, me, up in cases():
        expected = [member.id for member in ranked if member.id in up][:1]
        found = asked(ranked, me, up, "owner")
        assert [step.peer.id for step in found] == expected
        assert not any(step.may_fetch for step in found)


def test_nobody_asks_itself_or_who_is_down_and_no_question_leads_back() -> None:
    """Two nodes with whatever views: a question that may fetch is answered by an owner's, and that
    one by nobody's."""
    roles: tuple[Role, ...] = ("reader", "owner")
    for ranked, me, up in cases():
        for role in roles:
            for step in asked(ranked, me, up, role):
                assert step.peer.id != me
                assert step.peer.id in up
                if step.may_fetch:
                    answering = asked(ranked, step.peer.id, up - {step.peer.id} | {me}, "owner")
                    assert not any(further.may_fetch for further in answering)


def test_the_owner_is_who_a_reader_asks_first() -> None:
    for ranked, me, up in cases():
        owner = owner_of(ranked, me, up.__contains__)
        requests = asked(ranked, me, up, "reader")
        if requests:
            assert owner == requests[0].peer
        else:
            assert owner is None or owner.id == me


@pytest.mark.parametrize("role", ["reader", "owner"])
def test_verdicts_are_asked_for_when_they_are_needed(role: Role) -> None:
    """A breaker that opens between two questions counts, and who is not reached is not asked
    about."""
    seen: list[str] = []

    def is_up(member: str) -> bool:
        seen.append(member)
        return True

    requests = steps(tuple(MEMBERS), "z", is_up, role)
    assert next(requests).peer.id == "a"
    assert seen == ["a"]
    rest = [step.peer.id for step in requests]
    assert rest == (["b"] if role == "reader" else [])
    assert seen == ["a", *rest]

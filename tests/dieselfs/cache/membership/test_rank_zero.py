from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dieselfs.cache.membership.rank_zero import LeasedMembers, LocalRegistry, RankZeroRegistry
from dieselfs.cache.membership.registry import LEASE_S
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import (
    MAX_MEMBERS,
    Answer,
    Join,
    Leave,
    Members,
    NotCached,
    Request,
)
from dieselfs.errors import PeerFailed, PeerRefused, RegistryUnavailable
from tests.contracts.registry_contract import NODES, LeasedRegistryContract, OpenRegistry


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """To a node 0 that keeps `member_list`: what `PeerClient` and `PeerServer` do between them."""

    def __init__(self, member_list: LeasedMembers | None) -> None:
        self.member_list = member_list
        self.asked = list[Member]()
        self.trouble: PeerFailed | None = None

    def ask(self, member: Member, request: Request) -> Answer:
        self.asked.append(member)
        if self.trouble is not None:
            raise self.trouble
        if self.member_list is None:
            return NotCached()
        match request:
            case Join(member=who):
                return Members(tuple(self.member_list.join(who)))
            case Leave(member=id):
                self.member_list.leave(id)
                return Members(())
        raise AssertionError(request)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def member_list(clock: Clock) -> LeasedMembers:
    return LeasedMembers(clock)


@pytest.fixture
def wire(member_list: LeasedMembers) -> Wire:
    return Wire(member_list)


class TestDirectoryOfRankZero(LeasedRegistryContract):
    @pytest.fixture
    def open_registry(self, member_list: LeasedMembers, wire: Wire) -> OpenRegistry:
        def open(number: int) -> LocalRegistry | RankZeroRegistry:
            if number == 0:
                return LocalRegistry(member_list)
            return RankZeroRegistry(wire, NODES[0].address)  # type: ignore[arg-type]

        return open

    @pytest.fixture
    def end_leases(self, clock: Clock) -> Callable[[], None]:
        def end() -> None:
            clock.now += LEASE_S

        return end


@pytest.fixture
def other(wire: Wire) -> RankZeroRegistry:
    return RankZeroRegistry(wire, NODES[0].address)  # type: ignore[arg-type]


def test_node_0_is_asked_by_the_name_that_it_must_have(other: RankZeroRegistry, wire: Wire) -> None:
    other.announce(NODES[1])
    assert [(one.id, one.address) for one in wire.asked] == [("rank-0", NODES[0].address)]


def test_node_0_is_where_everybody_looks_for_it(
    other: RankZeroRegistry, member_list: LeasedMembers
) -> None:
    """Whatever it calls itself: one connection for its list and its chunks."""
    elsewhere = replace(NODES[0], address=PeerAddress("node-0.cluster", 7000))
    member_list.join(elsewhere)
    assert set(other.announce(NODES[1])) == {NODES[0], NODES[1]}


def test_node_0_gone_and_back_without_its_list(clock: Clock, wire: Wire) -> None:
    nodes = [RankZeroRegistry(wire, NODES[0].address) for _ in range(2)]  # type: ignore[arg-type]
    wire.trouble = PeerFailed("connection refused")
    with pytest.raises(RegistryUnavailable, match=r"10\.0\.0\.1:7000: connection refused"):
        nodes[0].announce(NODES[1])
    nodes[0].leave(NODES[1])
    wire.trouble, wire.member_list = None, LeasedMembers(clock)
    nodes[0].announce(NODES[1])
    assert set(nodes[1].announce(NODES[2])) == {NODES[1], NODES[2]}


def test_what_node_0_refuses_is_said_with_what_to_do(other: RankZeroRegistry, wire: Wire) -> None:
    wire.trouble = PeerRefused("another secret", "give all nodes the same")
    with pytest.raises(RegistryUnavailable) as caught:
        other.announce(NODES[1])
    assert caught.value.hint == "give all nodes the same"


def test_a_node_that_keeps_no_list(other: RankZeroRegistry, wire: Wire) -> None:
    wire.member_list = None
    with pytest.raises(RegistryUnavailable, match="keeps no list"):
        other.announce(NODES[1])


def test_the_list_has_a_bound(
    clock: Clock, member_list: LeasedMembers, caplog: pytest.LogCaptureFixture
) -> None:
    many = [Member(f"m-{number}", PeerAddress("h", 1), 1) for number in range(MAX_MEMBERS + 1)]
    for member in many:
        found = member_list.join(member)
        assert len(found) <= MAX_MEMBERS
        assert member in found
    assert "a task has at most" in caplog.text
    assert many[-1] not in member_list.join(many[0])
    clock.now += LEASE_S
    assert member_list.join(many[-1]) == [many[-1]]

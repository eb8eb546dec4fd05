from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dieselfs.errors import DirectoryUnavailable, PeerFailed, PeerRefused
from dieselfs.peercache.directory import LEASE_S
from dieselfs.peercache.members import Member
from dieselfs.peercache.messages import (
    MAX_MEMBERS,
    Answer,
    Join,
    Leave,
    Members,
    NotHeld,
    Request,
)
from dieselfs.peercache.rank_zero import LeaseRoll, OwnRoll, RollOfRankZero
from dieselfs.peercache.runtime import Address
from tests.contracts.directory_contract import NODES, LeasedDirectoryContract, OpenDirectory


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """To a node 0 that keeps `roll`: what `PeerClient` and `PeerServer` do between them."""

    def __init__(self, roll: LeaseRoll | None) -> None:
        self.roll = roll
        self.asked = list[Member]()
        self.trouble: PeerFailed | None = None

    def ask(self, member: Member, request: Request) -> Answer:
        self.asked.append(member)
        if self.trouble is not None:
            raise self.trouble
        if self.roll is None:
            return NotHeld()
        match request:
            case Join(member=who):
                return Members(tuple(self.roll.join(who)))
            case Leave(member=id):
                self.roll.leave(id)
                return Members(())
        raise AssertionError(request)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roll(clock: Clock) -> LeaseRoll:
    return LeaseRoll(clock)


@pytest.fixture
def wire(roll: LeaseRoll) -> Wire:
    return Wire(roll)


class TestDirectoryOfRankZero(LeasedDirectoryContract):
    @pytest.fixture
    def open_directory(self, roll: LeaseRoll, wire: Wire) -> OpenDirectory:
        def open(number: int) -> OwnRoll | RollOfRankZero:
            if number == 0:
                return OwnRoll(roll)
            return RollOfRankZero(wire, NODES[0].address)  # type: ignore[arg-type]

        return open

    @pytest.fixture
    def end_leases(self, clock: Clock) -> Callable[[], None]:
        def end() -> None:
            clock.now += LEASE_S

        return end


@pytest.fixture
def other(wire: Wire) -> RollOfRankZero:
    return RollOfRankZero(wire, NODES[0].address)  # type: ignore[arg-type]


def test_node_0_is_asked_by_the_name_that_it_must_have(other: RollOfRankZero, wire: Wire) -> None:
    other.announce(NODES[1])
    assert [(one.id, one.address) for one in wire.asked] == [("rank-0", NODES[0].address)]


def test_node_0_is_where_everybody_looks_for_it(other: RollOfRankZero, roll: LeaseRoll) -> None:
    """Whatever it calls itself: one connection for its list and its chunks."""
    elsewhere = replace(NODES[0], address=Address("node-0.cluster", 7000))
    roll.join(elsewhere)
    assert set(other.announce(NODES[1])) == {NODES[0], NODES[1]}


def test_node_0_gone_and_back_without_its_list(clock: Clock, wire: Wire) -> None:
    nodes = [RollOfRankZero(wire, NODES[0].address) for _ in range(2)]  # type: ignore[arg-type]
    wire.trouble = PeerFailed("connection refused")
    with pytest.raises(DirectoryUnavailable, match=r"10\.0\.0\.1:7000: connection refused"):
        nodes[0].announce(NODES[1])
    nodes[0].leave(NODES[1])
    wire.trouble, wire.roll = None, LeaseRoll(clock)
    nodes[0].announce(NODES[1])
    assert set(nodes[1].announce(NODES[2])) == {NODES[1], NODES[2]}


def test_what_node_0_refuses_is_said_with_what_to_do(other: RollOfRankZero, wire: Wire) -> None:
    wire.trouble = PeerRefused("another secret", "give all nodes the same")
    with pytest.raises(DirectoryUnavailable) as caught:
        other.announce(NODES[1])
    assert caught.value.hint == "give all nodes the same"


def test_a_node_that_keeps_no_list(other: RollOfRankZero, wire: Wire) -> None:
    wire.roll = None
    with pytest.raises(DirectoryUnavailable, match="keeps no list"):
        other.announce(NODES[1])


def test_the_list_has_a_bound(
    clock: Clock, roll: LeaseRoll, caplog: pytest.LogCaptureFixture
) -> None:
    many = [Member(f"m-{number}", Address("h", 1), 1) for number in range(MAX_MEMBERS + 1)]
    for member in many:
        found = roll.join(member)
        assert len(found) <= MAX_MEMBERS
        assert member in found
    assert "one member too many" in caplog.text
    assert many[-1] not in roll.join(many[0])
    clock.now += LEASE_S
    assert roll.join(many[-1]) == [many[-1]]

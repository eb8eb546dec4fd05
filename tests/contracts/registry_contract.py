"""The contract of every `MembershipRegistry`. A subscriber opens a node's own, and ends leases.

`RegistryContract` is for all; `LeasedRegistryContract` for those in which nodes learn of each other
by their announcements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dieselfs.cache.membership.registry import MembershipRegistry
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

OpenRegistry = Callable[[int], MembershipRegistry]
"""As node 0, 1 or 2 of one task does it."""

NODES = tuple(
    Member(
        f"rank-{number}",
        PeerAddress(f"10.0.0.{number + 1}", 7000),
        100 + number,
        f"host ä {number}",
    )
    for number in range(3)
)


def by_id(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: member.id)


class RegistryContract:
    @pytest.fixture
    def open_registry(self) -> OpenRegistry:
        raise NotImplementedError

    @pytest.fixture
    def nodes(self) -> Sequence[Member]:
        """The members that the nodes announce."""
        return NODES

    def test_who_announces_itself_is_among_them_as_it_said(
        self, open_registry: OpenRegistry, nodes: Sequence[Member]
    ) -> None:
        for number, me in enumerate(nodes):
            found = open_registry(number).announce(me)
            assert [member for member in found if member.id == me.id] == [me]

    def test_all_see_all(self, open_registry: OpenRegistry, nodes: Sequence[Member]) -> None:
        directories = [open_registry(number) for number in range(len(nodes))]
        for registry, me in zip(directories, nodes, strict=True):
            registry.announce(me)
        for registry, me in zip(directories, nodes, strict=True):
            found = by_id(registry.announce(me))
            assert [(one.id, one.address) for one in found] == [
                (one.id, one.address) for one in by_id(nodes)
            ]

    def test_a_member_may_leave_more_than_once_and_come_back(
        self, open_registry: OpenRegistry, nodes: Sequence[Member]
    ) -> None:
        registry = open_registry(0)
        registry.leave(nodes[0])
        registry.announce(nodes[0])
        registry.leave(nodes[0])
        registry.leave(nodes[0])
        assert nodes[0] in registry.announce(nodes[0])


class LeasedRegistryContract(RegistryContract):
    @pytest.fixture
    def end_leases(self) -> Callable[[], None]:
        """Time passes: all leases that there are end."""
        raise NotImplementedError

    def test_who_is_there_is_told_as_it_said(self, open_registry: OpenRegistry) -> None:
        open_registry(0).announce(NODES[0])
        assert by_id(open_registry(1).announce(NODES[1])) == list(NODES[:2])

    def test_who_has_left_is_gone(self, open_registry: OpenRegistry) -> None:
        first, second = open_registry(0), open_registry(1)
        first.announce(NODES[0])
        second.announce(NODES[1])
        second.leave(NODES[1])
        assert first.announce(NODES[0]) == [NODES[0]]

    def test_a_lease_that_is_not_renewed_ends(
        self, open_registry: OpenRegistry, end_leases: Callable[[], None]
    ) -> None:
        first, second = open_registry(0), open_registry(1)
        second.announce(NODES[1])
        first.announce(NODES[0])
        end_leases()
        assert first.announce(NODES[0]) == [NODES[0]]
        assert by_id(second.announce(NODES[1])) == list(NODES[:2])

    def test_a_node_that_has_started_again_replaces_what_it_left(
        self, open_registry: OpenRegistry
    ) -> None:
        """It is told once what it has replaced; the others see the new entry alone."""
        first, again = open_registry(0), open_registry(1)
        first.announce(NODES[0])
        again.announce(NODES[1])
        moved = replace(NODES[1], address=PeerAddress("10.0.0.9", 7001), weight=7)
        assert set(again.announce(moved)) == {NODES[0], NODES[1], moved}
        assert set(again.announce(moved)) == {NODES[0], moved}
        assert set(first.announce(NODES[0])) == {NODES[0], moved}

    def test_two_under_one_name_are_told_of_each_other(self, open_registry: OpenRegistry) -> None:
        one, other = NODES[1], replace(NODES[1], address=PeerAddress("10.0.0.9", 7000))
        directories = open_registry(1), open_registry(1)
        for _ in range(2):
            directories[0].announce(one)
            assert set(directories[1].announce(other)) == {one, other}

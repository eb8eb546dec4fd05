from __future__ import annotations

from collections.abc import Sequence

import pytest

from dieselfs.cache.membership.registry import StaticRegistry
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from tests.contracts.registry_contract import OpenRegistry, RegistryContract

ADDRESSES = (PeerAddress("a", 7000), PeerAddress("10.0.0.2", 7000), PeerAddress("localhost", 7001))


class TestStaticDirectory(RegistryContract):
    @pytest.fixture
    def nodes(self) -> Sequence[Member]:
        return [Member(str(address), address, 1, "host") for address in ADDRESSES]

    @pytest.fixture
    def open_registry(self) -> OpenRegistry:
        return lambda number: StaticRegistry(ADDRESSES)


def test_all_in_the_list_have_an_equal_share() -> None:
    me = Member("a:7000", ADDRESSES[0], 1)
    assert {member.weight for member in StaticRegistry(ADDRESSES).announce(me)} == {1}


def test_an_entry_that_is_there_twice_is_one_member() -> None:
    me = Member("a:7000", ADDRESSES[0], 1)
    assert len(StaticRegistry([*ADDRESSES, *ADDRESSES]).announce(me)) == 3

"""How the nodes of a simulated task find each other: by the production directories, and by a table
in the place of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from dieselfs.cache.membership.rank_zero import (
    LeasedMembers,
    LocalRegistry,
    RankZeroRegistry,
    rank_id,
)
from dieselfs.cache.membership.registry import (
    EQUAL_WEIGHT,
    LEASE_S,
    MembershipRegistry,
    StaticRegistry,
)
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import MemberList
from dieselfs.errors import RegistryUnavailable
from tests.simulation.runtime import SimulatedRuntime

DirectoryKind: TypeAlias = Literal["leases", "static", "rank zero"]
PORT: Final = 7000


def node_address(number: int) -> PeerAddress:
    return PeerAddress(f"10.0.0.{number + 1}", PORT)


class Directories:
    """Of one task. `is_out`: nobody gets an answer from the table of leases."""

    def __init__(self, kind: DirectoryKind, nodes: int) -> None:
        self._kind = kind
        self._addresses = [node_address(number) for number in range(nodes)]
        self.leases: dict[MemberId, tuple[Member, float]] = {}
        self.is_out = False

    def member(self, number: int, weight: int) -> Member:
        address = self._addresses[number]
        match self._kind:
            case "leases":
                return Member(f"node{number}", address, weight)
            case "static":
                return Member(str(address), address, EQUAL_WEIGHT)
            case "rank zero":
                return Member(rank_id(number), address, weight)

    def open(
        self, number: int, runtime: SimulatedRuntime, client: PeerClient
    ) -> tuple[MembershipRegistry, MemberList | None]:
        """Of one node, and the roll that its server keeps."""
        match self._kind:
            case "leases":
                return _Leases(runtime, self), None
            case "static":
                return StaticRegistry(self._addresses), None
            case "rank zero":
                if number:
                    return RankZeroRegistry(client, self._addresses[0]), None
                member_list = LeasedMembers(runtime.now)
                return LocalRegistry(member_list), member_list


class _Leases:
    """Implements `MembershipRegistry`, as `redis_registry` does."""

    def __init__(self, runtime: SimulatedRuntime, table: Directories) -> None:
        self._runtime, self._table = runtime, table

    def announce(self, me: Member) -> Sequence[Member]:
        self._runtime.sleep(2.0 if self._table.is_out else 0.001)
        if self._table.is_out:
            raise RegistryUnavailable("the table of leases is out")
        now, leases = self._runtime.now(), self._table.leases
        leases[me.id] = me, now
        for id, (_, renewed) in list(leases.items()):
            if renewed < now - LEASE_S:
                del leases[id]
        return [member for member, _ in leases.values()]

    def leave(self, me: Member) -> None:
        if not self._table.is_out:
            self._table.leases.pop(me.id, None)

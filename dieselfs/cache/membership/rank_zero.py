"""The membership registry of a PyTorch job: the master of node 0 keeps the member list.

The other nodes join the list over the wire. The member id of node n is `rank-<n>`, so the other
nodes know which member to expect at the one address that they have. When node 0 is gone the last
known members stay; when it is back the list fills again with the nodes' next announcements.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from dieselfs.cache.membership.registry import LEASE_S
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import MAX_MEMBERS, Join, Leave, Members
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import PeerFailed, RegistryUnavailable

log = logging.getLogger(__name__)


def rank_id(node_rank: int) -> MemberId:
    """Return the member id of a job's node."""
    return f"rank-{node_rank}"


class LeasedMembers:
    """A `MemberList` with leases by the clock of the node that keeps it."""

    def __init__(self, now: Callable[[], float], lease_s: float = LEASE_S) -> None:
        self._now = now
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._leases: dict[MemberId, tuple[Member, float]] = {}

    def join(self, member: Member) -> Sequence[Member]:
        """Renew the member's lease, and return all members that have one.

        An entry of another process under the same id is replaced, and returned this once.
        """
        now = self._now()
        with self._lock:
            self._leases = {
                id: (known, end) for id, (known, end) in self._leases.items() if end > now
            }
            others = [known for known, _ in self._leases.values() if known != member]
            if member.id in self._leases or len(self._leases) < MAX_MEMBERS:
                self._leases[member.id] = (member, now + self._lease_s)
            else:
                log.warning("cannot add member %s: a task has at most %d", member.id, MAX_MEMBERS)
            return [*others, member][-MAX_MEMBERS:]

    def leave(self, member: MemberId) -> None:
        """End the member's lease."""
        with self._lock:
            self._leases.pop(member, None)


class LocalRegistry:
    """The `MembershipRegistry` of node 0."""

    def __init__(self, member_list: LeasedMembers) -> None:
        self._member_list = member_list

    def announce(self, me: Member) -> Sequence[Member]:
        """See `MembershipRegistry`."""
        return self._member_list.join(me)

    def leave(self, me: Member) -> None:
        """See `MembershipRegistry`."""
        self._member_list.leave(me.id)


class RankZeroRegistry:
    """The `MembershipRegistry` of the other nodes."""

    def __init__(self, client: PeerClient, address: PeerAddress) -> None:
        self._client = client
        self._zero = Member(rank_id(0), address, 0)

    def announce(self, me: Member) -> Sequence[Member]:
        """See `MembershipRegistry`."""
        try:
            answer = self._client.ask(self._zero, Join(me))
        except PeerFailed as error:
            raise RegistryUnavailable(
                f"cannot reach node 0 of the job at {self._zero.address}: {error}", error.hint
            ) from error
        if not isinstance(answer, Members):
            raise RegistryUnavailable(
                f"node 0 of the job at {self._zero.address} keeps no list of members"
            )
        return [self._reached(member) for member in answer.members]

    def _reached(self, member: Member) -> Member:
        """Return the member, node 0 with the address at which all nodes look for it.

        With the address that node 0 gives itself, connections would alternate between the two.
        """
        if member.id != self._zero.id:
            return member
        return replace(member, address=self._zero.address)

    def leave(self, me: Member) -> None:
        """See `MembershipRegistry`."""
        try:
            self._client.ask(self._zero, Leave(me.id))
        except PeerFailed as error:
            log.info("cannot give back the lease, so it expires: %s", error)

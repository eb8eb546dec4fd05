"""The members of a task, or of a cache cluster, as leases in the Redis of the index.

Nothing there is secret, and nothing that is read there is trusted. The key
`dieselfs:{<task>}:peers` is a sorted set that maps `<id> <JSON of member_fields>` to the end of the
lease, so that `redis-cli zrange … withscores` shows it to people.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from dieselfs.cache.membership.registry import LEASE_S
from dieselfs.cache.ports.member_record import member_fields, member_from
from dieselfs.cache.ports.members import Member
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexUnavailable
from metadata.kv.redis_leases import RedisLeaseSet

log = logging.getLogger(__name__)


class RedisRegistry:
    """The `MembershipRegistry` in a Redis server or a Redis Cluster.

    An entry of another process under this node's id is returned with the others, once.
    """

    def __init__(self, url: str, task: str, *, only_looks: bool = False) -> None:
        """Raises `IndexUnavailable` if the URL is no address of a Redis.

        The first call connects. With `only_looks` the registry takes no lease.
        """
        self._only_looks = only_looks
        self._leases = RedisLeaseSet(url, f"dieselfs:{{{task}}}:peers")
        self._strange = False

    def announce(self, me: Member) -> Sequence[Member]:
        """See `MembershipRegistry`."""
        try:
            if self._only_looks:
                entries = self._leases.entries()
            else:
                entries = self._leases.renew(me.id, _entry(me), LEASE_S)
        except IndexUnavailable as error:
            raise RegistryUnavailable(str(error)) from error
        members = [member for entry in entries if (member := _member(entry)) is not None]
        strange = len(members) < len(entries)
        if strange and not self._strange:
            log.warning(
                "%s contains %d entries that are not members of a task; they are skipped",
                self._leases,
                len(entries) - len(members),
            )
        self._strange = strange
        return members

    def leave(self, me: Member) -> None:
        """See `MembershipRegistry`."""
        try:
            if not self._only_looks:
                self._leases.remove(_entry(me))
        except IndexUnavailable as error:
            log.info("cannot give back the lease, so it expires: %s", error)
        self._leases.close()


def _entry(member: Member) -> bytes:
    fields = json.dumps(member_fields(member), ensure_ascii=False, separators=(",", ":"))
    return f"{member.id} {fields}".encode()


def _member(entry: bytes) -> Member | None:
    id, _, fields = entry.partition(b" ")
    try:
        member = member_from(json.loads(fields))
    except (ValueError, RecursionError):
        return None
    return member if member.id.encode() == id else None

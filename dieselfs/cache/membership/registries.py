"""The choice of a task's membership registry, and the id under which this node appears in it."""

from __future__ import annotations

from collections.abc import Callable

from dieselfs.cache.membership.peer_addresses import is_loopback, is_wildcard
from dieselfs.cache.membership.rank_zero import (
    LeasedMembers,
    LocalRegistry,
    RankZeroRegistry,
    rank_id,
)
from dieselfs.cache.membership.registry import EQUAL_WEIGHT, MembershipRegistry, StaticRegistry
from dieselfs.cache.ports.member_record import MAX_NODE_BYTES, checked_id
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.ports.peer_settings import PeerSettings, RankZero, RedisLeases, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import ConfigError, UsageError
from metadata.errors import IndexUnavailable


def members_to_keep(settings: PeerSettings, now: Callable[[], float]) -> LeasedMembers | None:
    """Return the member list that this node's server keeps for the other nodes.

    None if this node is not the one that keeps it.
    """
    is_zero = isinstance(settings.registry, RankZero) and settings.registry.node_rank == 0
    return LeasedMembers(now) if is_zero else None


def open_registry(
    settings: PeerSettings, client: PeerClient, member_list: LeasedMembers | None = None
) -> MembershipRegistry:
    """Open the membership registry of the settings. Asks nobody yet. Raises `ConfigError`.

    `member_list` is the result of `members_to_keep`, which the server also uses.
    """
    match settings.registry:
        case RedisLeases(url=url):
            from dieselfs.cache.membership.redis_registry import RedisRegistry

            try:
                return RedisRegistry(url, settings.task)
            except IndexUnavailable as error:
                raise ConfigError(
                    f"cannot reach the Redis that lists the members of the task: {error}"
                ) from error
        case StaticPeers(addresses=addresses):
            return StaticRegistry(addresses)
        case RankZero(address=address):
            return (
                RankZeroRegistry(client, address)
                if member_list is None
                else LocalRegistry(member_list)
            )


def own_id(settings: PeerSettings, address: PeerAddress) -> MemberId:
    """Return this node's member id if it listens on `address`, which includes its port.

    The id is the same after a restart on the same address. Raises `UsageError`.
    """
    advertised = _advertised(settings, address)
    match settings.registry:
        case RankZero(node_rank=node_rank):
            if settings.member is not None:
                raise UsageError(
                    f"{settings.member}: nodes of a PyTorch job are named by their ranks",
                    "leave the name out (--peer-name)",
                )
            return rank_id(node_rank)
        case StaticPeers(addresses=addresses):
            if advertised not in addresses or settings.member not in (None, str(advertised)):
                raise UsageError(
                    f"{settings.member or advertised} is not in the list of peers: "
                    f"{', '.join(map(str, addresses))}",
                    "write the same list on all nodes, and listen on this node's entry",
                )
            return _checked(str(advertised))
        case RedisLeases():
            with_port = is_loopback(advertised.host)
            return _checked(settings.member or (str(advertised) if with_port else advertised.host))


def own_member(
    settings: PeerSettings, address: PeerAddress, memory_bytes: int, node: str
) -> Member:
    """Return the record by which this node announces itself. Raises `UsageError`.

    `address` is the address on which this node listens, with its port; `memory_bytes` is the memory
    that it gives to the task; `node` is the host's name.
    """
    id = own_id(settings, address)
    weight = max(1, memory_bytes >> 20) if settings.gives_memory else 0
    if isinstance(settings.registry, StaticPeers):
        if not settings.gives_memory:
            raise UsageError(
                "a list of peers gives each node a share, but this node has none",
                "give it a share, or use --peers redis or --peers torch",
            )
        weight = EQUAL_WEIGHT
    printable = "".join(letter for letter in node if letter.isprintable())
    shown = printable.encode()[:MAX_NODE_BYTES].decode(errors="ignore")
    return Member(id, _advertised(settings, address), weight, shown)


def _advertised(settings: PeerSettings, address: PeerAddress) -> PeerAddress:
    host = settings.advertise or address.host
    if is_wildcard(host):
        raise UsageError(
            f"peers cannot connect to {host}",
            "name the host at which they reach this node (--peer-advertise)",
        )
    return PeerAddress(host, address.port)


def _checked(id: str) -> MemberId:
    try:
        return checked_id(id)
    except ValueError as error:
        raise UsageError(
            f"{id!r} cannot be a member's name",
            "give this node one of 1 to 64 printable ASCII characters without blanks (--peer-name)",
        ) from error

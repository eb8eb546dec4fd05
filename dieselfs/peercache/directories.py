"""Which directory a task's members find each other by, and what this node is called there."""

from __future__ import annotations

from collections.abc import Callable

from dieselfs.errors import ConfigError, UsageError
from dieselfs.peercache.directory import MembershipRegistry
from dieselfs.peercache.member_record import MAX_NODE_BYTES, is_member_id
from dieselfs.peercache.members import Member, MemberId
from dieselfs.peercache.peer_addresses import is_loopback, is_wildcard
from dieselfs.peercache.peer_client import PeerClient
from dieselfs.peercache.rank_zero import LeasedMembers, LocalRegistry, RankZeroRegistry, rank_id
from dieselfs.peercache.runtime import PeerAddress
from dieselfs.peercache.settings import PeerSettings, RankZero, RedisLeases, StaticPeers
from dieselfs.peercache.static_directory import EQUAL_WEIGHT, StaticRegistry
from metadata.errors import IndexUnavailable


def members_to_keep(settings: PeerSettings, now: Callable[[], float]) -> LeasedMembers | None:
    """The list that this node's server has to keep for the others; None if that is not its part."""
    is_zero = isinstance(settings.registry, RankZero) and settings.registry.node_rank == 0
    return LeasedMembers(now) if is_zero else None


def open_registry(
    settings: PeerSettings, client: PeerClient, member_list: LeasedMembers | None = None
) -> MembershipRegistry:
    """`member_list`: that of `members_to_keep`, which the server has too. Asks nobody yet. `ConfigError`."""
    match settings.registry:
        case RedisLeases(url=url):
            from dieselfs.peercache.redis_directory import RedisRegistry

            try:
                return RedisRegistry(url, settings.task)
            except IndexUnavailable as error:
                raise ConfigError(f"the members of a task meet in Redis: {error}") from error
        case StaticPeers(addresses=addresses):
            return StaticRegistry(addresses)
        case RankZero(address=address):
            return (
                RankZeroRegistry(client, address)
                if member_list is None
                else LocalRegistry(member_list)
            )


def own_id(settings: PeerSettings, address: PeerAddress) -> MemberId:
    """What this node is called, if it listens on `address`, with its port. The same after a restart on the same address. `UsageError`."""
    advertised = _advertised(settings, address)
    match settings.registry:
        case RankZero(node_rank=node_rank):
            if settings.member is not None:
                raise UsageError(
                    f"{settings.member}: in a PyTorch job nodes are called by their rank",
                    "leave the name out (--peer-name)",
                )
            return rank_id(node_rank)
        case StaticPeers(addresses=addresses):
            if advertised not in addresses or settings.member not in (None, str(advertised)):
                raise UsageError(
                    f"{settings.member or advertised} is not in the list of peers: {', '.join(map(str, addresses))}",
                    "write the same list on all nodes, and listen on this node's entry",
                )
            return _checked(str(advertised))
        case RedisLeases():
            with_port = is_loopback(advertised.host)
            return _checked(settings.member or (str(advertised) if with_port else advertised.host))


def own_member(
    settings: PeerSettings, address: PeerAddress, memory_bytes: int, node: str
) -> Member:
    """As this node announces itself. `address`: the one that is listened on, with its port; `memory_bytes`: that it gives; `node`: the host's name."""
    id = own_id(settings, address)
    weight = max(1, memory_bytes >> 20) if settings.gives_memory else 0
    if isinstance(settings.registry, StaticPeers):
        if not settings.gives_memory:
            raise UsageError(
                "a list of peers can't say that this node has no share",
                "give it one, or let the task meet in Redis or in its PyTorch job (--peers)",
            )
        weight = EQUAL_WEIGHT
    printable = "".join(letter for letter in node if letter.isprintable())
    shown = printable.encode()[:MAX_NODE_BYTES].decode(errors="ignore")
    return Member(id, _advertised(settings, address), weight, shown)


def _advertised(settings: PeerSettings, address: PeerAddress) -> PeerAddress:
    host = settings.advertise or address.host
    if is_wildcard(host):
        raise UsageError(
            f"peers can't connect to {host}",
            "say by which host they reach this node (--peer-advertise)",
        )
    return PeerAddress(host, address.port)


def _checked(id: str) -> MemberId:
    if not is_member_id(id):
        raise UsageError(
            f"{id!r} can't be a member's name",
            "give this node one of 1 to 64 printable ASCII characters without blanks (--peer-name)",
        )
    return id

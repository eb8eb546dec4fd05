"""The options by which a node takes part in its task's peer cache.

They come from flags, -o options, and variables, in this order. Each option has a variable, so that
training code that opens a task's memory needs no change: `from_environment`.

| option | variable |
|---|---|
| --peers redis, torch, torch:PORT, HOST:PORT,HOST:PORT…, none | DIESELFS_PEERS |
| --task NAME | DIESELFS_TASK |
| --peer-listen ADDRESS[:PORT] | DIESELFS_PEER_LISTEN |
| --peer-advertise HOST | DIESELFS_PEER_ADVERTISE |
| --peer-name ID | DIESELFS_PEER_NAME |
| --peer-nodes N | DIESELFS_PEER_NODES |
| --cache-policy oneshot, on-demand | DIESELFS_CACHE_POLICY |
| --no-share | DIESELFS_NO_SHARE=1 |
| --secret-file PATH | DIESELFS_TASK_SECRET_FILE; the secret itself: DIESELFS_TASK_SECRET |
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dieselfs.cache.membership import torch_job
from dieselfs.cache.membership.peer_addresses import (
    is_host,
    is_loopback,
    is_of_this_node,
    is_wildcard,
    own_host_towards,
    parse_address,
    parse_addresses,
)
from dieselfs.cache.ports.peer_settings import (
    LOOPBACK,
    CachePolicy,
    PeerSettings,
    RankZero,
    RedisLeases,
    StaticPeers,
)
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import FILE_VARIABLE, VARIABLE, TaskSecret
from dieselfs.config import TASK_VARIABLE, Setting, load_config
from dieselfs.errors import ConfigError, UsageError

CACHE_POLICIES: Final[tuple[CachePolicy, ...]] = ("oneshot", "on-demand")
_NONE: Final = "none"
_NAME: Final = re.compile(r"[!-~]{1,64}")
_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The options as written. None stands for an option that is not given."""

    peers: str | None = None
    listen: str | None = None
    advertise: str | None = None
    name: str | None = None
    nodes: int | None = None
    secret_file: str | None = None
    cache_policy: str | None = None
    no_share: bool | None = None

    def otherwise(self, other: PeerOptions) -> PeerOptions:
        """Return these options, with those of `other` where one is not given here."""
        return PeerOptions(
            self.peers if self.peers is not None else other.peers,
            self.listen or other.listen,
            self.advertise or other.advertise,
            self.name or other.name,
            self.nodes if self.nodes is not None else other.nodes,
            self.secret_file or other.secret_file,
            self.cache_policy or other.cache_policy,
            self.no_share if self.no_share is not None else other.no_share,
        )

    @property
    def is_empty(self) -> bool:
        """No option is given."""
        return self == PeerOptions()


def options_in(environment: Mapping[str, str]) -> PeerOptions:
    """Return the options that the variables give. Raises `UsageError` for a number that is none."""
    nodes = environment.get("DIESELFS_PEER_NODES") or None
    if nodes is not None and not nodes.isdecimal():
        raise UsageError(f"DIESELFS_PEER_NODES={nodes}: not a number")
    return PeerOptions(
        environment.get("DIESELFS_PEERS") or None,
        environment.get("DIESELFS_PEER_LISTEN") or None,
        environment.get("DIESELFS_PEER_ADVERTISE") or None,
        environment.get("DIESELFS_PEER_NAME") or None,
        None if nodes is None else int(nodes),
        None,  # `TaskSecret.load` reads the secret's variables
        environment.get("DIESELFS_CACHE_POLICY") or None,
        True if environment.get("DIESELFS_NO_SHARE", "") not in ("", "0") else None,
    )


def from_environment(
    environment: Mapping[str, str] = os.environ,
    task: str | None = None,
    index: Setting | None = None,
) -> PeerSettings | None:
    """Return the settings that the variables ask for; None without DIESELFS_PEERS.

    `task` is a name given in code; without it DIESELFS_TASK applies. For `redis` the Redis is that
    of `index`, or of the configuration. Raises `UsageError`.
    """
    options = options_in(environment)
    if options.peers in (None, _NONE):
        return None
    if options.peers == "redis":
        index = index or load_config(environment=environment).index
    return peer_settings(
        options, task or environment.get(TASK_VARIABLE) or None, index, environment
    )


def peer_settings(
    options: PeerOptions,
    task: str | None,
    index: Setting | None,
    environment: Mapping[str, str] = os.environ,
    *,
    is_own: Callable[[str], bool] = is_of_this_node,
    own_towards: Callable[[str], str | None] = own_host_towards,
) -> PeerSettings | None:
    """Return the settings that these options ask for; None if they ask for no peers.

    `task` is a name that a person gave, never one that stands for a dataset. `index` is the index
    whose Redis holds the leases. Reads the secret's file. Raises `UsageError` with the words to
    write.
    """
    if options.peers is None:
        _refuse_without_peers(options)
        return None
    if options.peers == _NONE:
        return None
    if task is None:
        raise UsageError(
            "peers need the name of a task: the default, the dataset's name, is the same for "
            "all jobs that read the dataset",
            "name the task, with the same name on all its nodes: --task resnet50-run1, or "
            "DIESELFS_TASK",
        )
    _check(options)
    listen = LOOPBACK if options.listen is None else _listened(options.listen)
    registry: RedisLeases | StaticPeers | RankZero
    nodes = options.nodes
    meeting = None
    """A host that this node reaches from the address by which its peers reach this node."""
    if options.name is not None and options.peers != "redis":
        raise UsageError(
            f"--peer-name {options.name}: peers in a list are named by their addresses, in a "
            "PyTorch job by their ranks",
            "leave the option out",
        )
    if options.peers == "redis":
        url = _redis_of(index)
        registry, meeting = RedisLeases(url), urlsplit(url.partition(",")[0]).hostname
    elif options.peers == "torch" or options.peers.startswith("torch:"):
        registry, listen = _torch(options.peers, listen, environment)
        nodes, meeting = nodes or registry.nodes, registry.address.host
        if options.listen is None and not is_loopback(meeting) and registry.nodes > 1:
            raise UsageError(
                "--peers torch: nodes reach each other over the network, and this node listens "
                f"on {LOOPBACK.host} alone",
                "give this node's address with --peer-listen, or 0.0.0.0 for all its addresses "
                "(DIESELFS_PEER_LISTEN)",
            )
    else:
        registry = StaticPeers(parse_addresses(options.peers, "--peers"))
        if any(is_wildcard(address.host) for address in registry.addresses):
            raise UsageError(
                f"--peers {options.peers}: peers cannot connect to a wildcard address",
                "write the address at which the other nodes reach this node; --peer-listen names "
                "the address that it listens on",
            )
        own = _own(registry, options, listen, is_own)
        nodes = nodes or len(registry.addresses)
        listen = PeerAddress(own.host if options.listen is None else listen.host, own.port)
        options = replace(options, advertise=own.host)
    return PeerSettings(
        task=task,
        secret=_secret(options, environment),
        registry=registry,
        listen=listen,
        advertise=options.advertise or _advertised(listen, meeting, own_towards),
        member=options.name,
        nodes=nodes,
        cache_policy="oneshot" if options.cache_policy == "oneshot" else "on-demand",
        gives_memory=not options.no_share,
    )


def _refuse_without_peers(options: PeerOptions) -> None:
    if not options.is_empty:
        raise UsageError(
            "options of a peer cache need --peers",
            "add --peers redis, --peers torch, or the list of all peers, HOST:PORT,HOST:PORT…",
        )


def _check(options: PeerOptions) -> None:
    if options.cache_policy not in (None, *CACHE_POLICIES):
        raise UsageError(
            f"cache policy {options.cache_policy!r}", f"write {' or '.join(CACHE_POLICIES)}"
        )
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise UsageError(
            f"--peer-name {options.name!r}: this is not a name",
            "use 1 to 64 printable ASCII characters without blanks",
        )
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--peer-nodes {options.nodes}: the number is at least 1")
    host = options.advertise
    if host is not None and (is_wildcard(host) or not is_host(host)):
        raise UsageError(
            f"--peer-advertise {host}: peers cannot connect to this host",
            "write this node's name or address, without a port",
        )


def _listened(text: str) -> PeerAddress:
    return parse_address(text, "--peer-listen", default_port=0)


def _redis_of(index: Setting | None) -> str:
    if index is None or index.value.partition("://")[0] not in _REDIS:
        found = "there is no index" if index is None else f"the index is {index}"
        raise ConfigError(
            "--peers redis: the members of a task find each other in the Redis of the index, "
            f"and {found}",
            "set DIESELFS_INDEX to redis://HOST:PORT/DB, or write --peers torch or a list of peers",
        )
    return index.value


def _torch(
    peers: str, listen: PeerAddress, environment: Mapping[str, str]
) -> tuple[RankZero, PeerAddress]:
    """Return the registry of a PyTorch job, and the address to listen on.

    Node 0 listens where the others look for it.
    """
    _, separator, port = peers.partition(":")
    if separator and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"--peers {peers}: this is not a port", "write torch, or torch:PORT")
    found = torch_job.rank_zero(environment, int(port) if separator else None)
    if found.node_rank:
        return found, listen
    if listen.port not in (0, found.address.port):
        raise UsageError(
            f"--peer-listen {listen}: the peers reach node 0 at port {found.address.port}",
            f"leave the port out, or write --peers torch:{listen.port} on all nodes",
        )
    return found, PeerAddress(listen.host, found.address.port)


def _own(
    peers: StaticPeers, options: PeerOptions, listen: PeerAddress, is_own: Callable[[str], bool]
) -> PeerAddress:
    """Return the entry of the list that is this node's.

    It is found by this node's addresses, unless `--peer-listen` or `--peer-advertise` names it.
    """
    if options.no_share:
        raise UsageError(
            "--no-share: a list of peers gives each node a share",
            "use the membership registry of Redis (--peers redis) or of the PyTorch job "
            "(--peers torch)",
        )
    found = [address for address in peers.addresses if listen.port in (0, address.port)]
    if options.advertise is not None:
        found = [address for address in found if address.host == options.advertise]
    else:
        named = options.listen is not None
        exact = [address for address in found if named and address.host == listen.host]
        found = exact or [address for address in found if is_own(address.host)]
    if len(found) != 1:
        which = "none" if not found else "more than one"
        raise UsageError(
            f"--peers {','.join(map(str, peers.addresses))}: {which} of them is this node",
            "name this node's entry of the list: --peer-listen HOST:PORT",
        )
    return found[0]


def _advertised(
    listen: PeerAddress, meeting: str | None, own_towards: Callable[[str], str | None]
) -> str | None:
    """Return the host that peers are given in place of a wildcard.

    None if the address that is listened on will do.
    """
    if not is_wildcard(listen.host):
        return None
    own = own_towards(meeting) if meeting else None
    if own is None or is_loopback(own):
        raise UsageError(
            f"--peer-listen {listen.host}: cannot determine the address at which peers reach "
            "this node",
            "name it: --peer-advertise HOST",
        )
    return own


def _secret(options: PeerOptions, environment: Mapping[str, str]) -> TaskSecret:
    file = None if options.secret_file is None else Path(options.secret_file)
    found = TaskSecret.load(environment, file)
    if found is None:
        raise UsageError(
            "peers need a secret that they prove to each other",
            "make one with `dlcmd task secret FILE`, copy the file to all nodes, and give "
            f"--secret-file FILE ({FILE_VARIABLE}, or the secret itself in {VARIABLE})",
        )
    return found

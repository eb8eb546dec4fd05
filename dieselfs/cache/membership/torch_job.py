"""The facts of a PyTorch job in the environment: node 0's address, this node, and their number.

`torchrun` sets all of them for the processes that it starts. Slurm and Lightning name the node and
the number of nodes in their own way. A launcher script sets `MASTER_ADDR`, `NODE_RANK` and
`NNODES`, and may start a mount with the same variables before it starts the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dieselfs.cache.membership.peer_addresses import is_host
from dieselfs.cache.ports.peer_settings import RankZero
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import UsageError

_NODE: Final = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_NODES: Final = ("GROUP_WORLD_SIZE", "NNODES", "SLURM_NNODES")
_TORCH_PORT: Final = 29500
"""`torchrun`'s default for MASTER_PORT."""
_PORTS_APART: Final = 100
"""The distance of the peer port from MASTER_PORT, which is PyTorch's own.

Two jobs on one machine have ports that lie close together.
"""
_MAX_PORT: Final = 65535


def rank_zero(environment: Mapping[str, str], port: int | None = None) -> RankZero:
    """Return the job's node 0, this node's rank, and the number of nodes.

    `port` is the port on which the master of node 0 listens, by default MASTER_PORT + 100. Raises
    `UsageError`, which names the missing variable.
    """
    host = environment.get("MASTER_ADDR", "")
    if not is_host(host):
        raise UsageError(
            "--peers torch: MASTER_ADDR does not name the host of node 0",
            "start the job under torchrun, or set MASTER_ADDR, NODE_RANK and NNODES",
        )
    node = _number(environment, _NODE)
    nodes = _number(environment, _NODES)
    if node is None or nodes is None:
        by_ranks = _by_ranks(environment)
        node = by_ranks[0] if node is None else node
        nodes = by_ranks[1] if nodes is None else nodes
    if node is not None and nodes is not None and node >= nodes:
        raise UsageError(
            f"--peers torch: there is no node {node} of {nodes}: nodes are counted from 0",
            "set NODE_RANK (0 on the node of MASTER_ADDR) and NNODES",
        )
    if node is None or nodes is None:
        raise UsageError(
            "--peers torch: cannot determine this node's rank and the number of nodes",
            "set NODE_RANK (0 on the node of MASTER_ADDR) and NNODES",
        )
    return RankZero(PeerAddress(host, port or _port(environment)), node, nodes)


def _by_ranks(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return this node and the number of nodes, computed from the ranks; None where unknown.

    All nodes must have as many ranks, which are assigned node by node.
    """
    per_node = _number(environment, ("LOCAL_WORLD_SIZE",))
    world, rank = _number(environment, ("WORLD_SIZE",)), _number(environment, ("RANK",))
    if not per_node or world is None or rank is None:
        return None, None
    local = _number(environment, ("LOCAL_RANK",))
    if world % per_node or rank >= world or local not in (None, rank % per_node):
        raise UsageError(
            f"--peers torch: RANK={rank} of WORLD_SIZE={world} "
            f"with LOCAL_WORLD_SIZE={per_node} a node"
            f"{'' if local is None else f' and LOCAL_RANK={local}'} "
            "does not say which node this is",
            "set NODE_RANK (0 on the node of MASTER_ADDR) and NNODES",
        )
    return rank // per_node, world // per_node


def _port(environment: Mapping[str, str]) -> int:
    port = _number(environment, ("MASTER_PORT",)) or _TORCH_PORT
    return port + _PORTS_APART if port + _PORTS_APART <= _MAX_PORT else port - _PORTS_APART


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if value := environment.get(name):
            if not value.isdecimal():
                raise UsageError(f"--peers torch: {name}={value} is not a number")
            return int(value)
    return None

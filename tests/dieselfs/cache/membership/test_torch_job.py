from __future__ import annotations

import pytest

from dieselfs.cache.membership.torch_job import rank_zero
from dieselfs.cache.ports.peer_settings import RankZero
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import UsageError

BASE = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN = {
    **BASE,
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
"""4 ranks on node 0 and 2 on node 1: only the group's variables tell."""


@pytest.mark.parametrize(
    ("environment", "node", "nodes"),
    [
        (TORCHRUN, 1, 2),
        ({**BASE, "NODE_RANK": "2", "NNODES": "3"}, 2, 3),
        ({**BASE, "SLURM_NODEID": "0", "SLURM_NNODES": "4"}, 0, 4),
        ({**BASE, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 1, 2),
        (
            {**BASE, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            1,
            2,
        ),
        ({**BASE, "NODE_RANK": "0", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 0, 2),
        ({"MASTER_ADDR": "node0", "NODE_RANK": "0", "NNODES": "1"}, 0, 1),
    ],
)
def test_which_node_of_how_many(environment: dict[str, str], node: int, nodes: int) -> None:
    assert rank_zero(environment) == RankZero(PeerAddress("node0", 29600), node, nodes)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "MASTER_ADDR"),
        (BASE, "cannot determine this node's rank"),
        ({**BASE, "RANK": "1", "WORLD_SIZE": "2"}, "cannot determine this node's rank"),
        ({**BASE, "NODE_RANK": "1"}, "cannot determine this node's rank"),
        ({**BASE, "NODE_RANK": "2", "NNODES": "2"}, "node 2 of 2"),
        ({**BASE, "NODE_RANK": "-1", "NNODES": "2"}, "NODE_RANK=-1 is not a number"),
        ({**BASE, "RANK": "4", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"}, "WORLD_SIZE=6"),
        ({**BASE, "RANK": "8", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, "RANK=8"),
        (
            {**BASE, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"},
            "LOCAL_RANK=2",
        ),
    ],
)
def test_what_does_not_say_it(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rank_zero(environment)

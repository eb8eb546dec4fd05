"""Mounts of two nodes that share what is allocated to their job, by the Redis of the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.allocation.directory.redis_directory import RedisDirectory
from dieselfs.errors import RegistryUnavailable
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import NodeHere, nodes_here
from tests.eventually import eventually
from tests.services.redis_processes import RedisProcess

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
TOTAL = 8e6


@pytest.fixture
def nodes(
    dlcmd: Dlcmd, pictures: Path, tmp_path: Path, own_redis_server: RedisProcess
) -> Iterator[list[NodeHere]]:
    with nodes_here(dlcmd, tmp_path, 2) as made:
        for number, node in enumerate(made):
            node.environment["DIESELFS_INDEX"] = own_redis_server.url
            node.mount("--job", "resnet", "--task", f"node{number}")
        yield made


def allocations(nodes: list[NodeHere]) -> list[dict[str, Any]]:
    return [dict(node.statistics()["allocation"]) for node in nodes]


def allowed(nodes: list[NodeHere]) -> list[float | None]:
    return [each["allowed_bytes_per_s"] for each in allocations(nodes)]


def are_shared(nodes: list[NodeHere]) -> bool:
    """Whether both have a part of the rate, and use all of it together."""
    parts = allowed(nodes)
    if None in parts:
        return False
    return sum(parts) == pytest.approx(TOTAL) and max(parts) < TOTAL  # type: ignore[arg-type, type-var]


def test_mounts_keep_their_shares_while_the_redis_is_killed_and_lost(
    nodes: list[NodeHere], own_redis_server: RedisProcess, pictures: Path
) -> None:
    directory = RedisDirectory(own_redis_server.url)
    directory.allocate_remote_io("resnet", TOTAL, origin="hand")
    eventually(lambda: are_shared(nodes), "the shares")
    own_redis_server.stop()
    own_redis_server.forget()
    eventually(lambda: min(each["age_s"] for each in allocations(nodes)) > 1.5, "it is missed")
    before = allowed(nodes)
    for node in nodes:
        for source in pictures.rglob("*.jpg"):
            shown = node.mountpoint / source.relative_to(pictures)
            assert shown.read_bytes() == source.read_bytes()
    assert allowed(nodes) == before
    assert {each["origin"] for each in allocations(nodes)} == {"hand"}
    own_redis_server.start()
    eventually(lambda: len(directory.leases()) == 2, "both are back", ignored=RegistryUnavailable)
    assert directory.decisions().ios == []
    assert None not in allowed(nodes), "nobody has withdrawn it"
    # A mount that is told of the other one's lease first divides a moment before it.
    eventually(lambda: are_shared(nodes), "the shares")
    directory.allocate_remote_io("resnet", 1e6, origin="hand")
    eventually(
        lambda: {each["job_bytes_per_s"] for each in allocations(nodes)} == {1e6}, "another rate"
    )
    for node in nodes:
        node("umount", node.mountpoint)
    eventually(lambda: not directory.leases(), "the leases given back")
    directory.close()

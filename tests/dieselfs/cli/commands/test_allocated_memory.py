"""A dataset's quota in the node memory of its mounts, by an allocation directory in a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import NodeHere, nodes_here
from tests.eventually import eventually, scaled_by_load

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
CHUNK_BYTES = 32 << 10


@pytest.fixture
def node(dlcmd: Dlcmd, pictures: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def directory(node: NodeHere) -> FolderDirectory:
    return FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")


def cached(node: NodeHere) -> dict[str, Any]:
    return dict(node.statistics()["cache"]["node"])


def allocate(directory: FolderDirectory, node: NodeHere, size: int | None) -> None:
    [lease] = eventually(directory.leases, "a lease")
    directory.allocate_cache_size("pets", lease.dataset_id, size, origin="hand")
    eventually(
        lambda: node.statistics()["allocation"]["quota_bytes"] == size,
        "the quota",
        scaled_by_load(10),
    )
    # The mount shows the quota before its node memory has it.
    budget = 64 << 20 if size is None else size
    eventually(lambda: cached(node)["budget_bytes"] == budget, "the budget of node memory")


def read_all(node: NodeHere, pictures: Path) -> None:
    for source in sorted(pictures.rglob("*.jpg")):
        shown = node.mountpoint / source.relative_to(pictures)
        assert shown.read_bytes() == source.read_bytes()


def test_less_quota_evicts_and_more_is_filled(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    node.mount("--job", "resnet")
    read_all(node, pictures)
    whole = cached(node)["cached_bytes"]
    assert whole >= 160 * 5000
    allocate(directory, node, 8 * CHUNK_BYTES)
    eventually(lambda: cached(node)["cached_bytes"] <= 8 * CHUNK_BYTES, "room", scaled_by_load(10))
    left = cached(node)
    assert left["cached_bytes"] > 6 * CHUNK_BYTES
    eventually(
        lambda: node.statistics()["allocation"]["held_bytes"] == left["cached_bytes"],
        "what is held",
    )
    # It is in the lease a moment later.
    eventually(
        lambda: [each.held_bytes for each in directory.leases()] == [left["cached_bytes"]],
        "the lease",
    )
    allocate(directory, node, None)


def test_at_the_quota_what_is_in_stays_and_nothing_is_fetched_in_vain(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    node.mount("--job", "resnet", "--eviction", "lru")
    allocate(directory, node, 8 * CHUNK_BYTES)
    read_all(node, pictures)
    names = sorted(path.name for path in node.memory.glob("*/*/chunks/*"))
    full = cached(node)
    read_all(node, pictures)
    assert sorted(path.name for path in node.memory.glob("*/*/chunks/*")) == names
    assert cached(node)["fetches"] == full["fetches"] == len(names)
    assert cached(node)["evictions"] == 0
    # What was not kept was read as files, with the kernel's readahead. A chunk for each of the 112
    # files would have been 3.5 MB.
    assert node.statistics()["allocation"]["used_bytes"] < 2 * 160 * 5000


@pytest.mark.parametrize("tier", [False, True])
def test_a_known_order_is_prefetched_under_a_quota_of_nothing(
    dlcmd: Dlcmd, photographs: Path, tmp_path: Path, tier: bool
) -> None:
    ssd = ("--ssd", str(tmp_path / "ssd"), "--ssd-size", "64MiB") if tier else ()
    with nodes_here(dlcmd, tmp_path, 1) as [node]:
        directory = FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")
        node.mount("--job", "resnet", *ssd)
        allocate(directory, node, 0)
        listed = node.mountpoint / ".dieselfs/shuffle/seed=1,epoch=0,group=2"
        expected = {
            str(path.relative_to(photographs)): hashlib.sha256(path.read_bytes()).digest()
            for path in photographs.rglob("*.jpg")
        }
        paths = listed.read_text().splitlines()
        eventually(lambda: node.statistics()["plan_sources"]["lists"] == 1, "the order")
        for number, path in enumerate(paths):
            if number % 10 == 0:  # a reader of a busy machine may leave the prefetcher behind
                eventually(
                    lambda number=number: node.statistics()["plan"]["fetched"] > number // 10,
                    "the prefetcher",
                )
            content = (node.mountpoint / path).read_bytes()
            assert hashlib.sha256(content).digest() == expected.pop(path)
        assert not expected
        found = node.statistics()
        assert found["plan"]["fetched"] > 10
        assert found["cache"]["node"]["cached_bytes"] <= 12 << 20  # the window

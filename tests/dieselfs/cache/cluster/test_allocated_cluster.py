"""Real cache nodes that keep to quotas, and readers that pay for what the nodes fetch for them."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dieselfs.allocation.allocator.capacity import ClusterCapacity
from dieselfs.allocation.allocator.present_jobs import present_jobs
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers import reader_allocation
from tests.dieselfs.cache.cluster.cluster_of_nodes import (
    JobReader,
    NodeProcess,
    kept_quotas,
    ring_of,
)
from tests.dieselfs.cache.cluster.test_mount_through_a_cluster import mounted
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.own_node_memory import own_node_memory
from tests.peers.task_nodes import PeerDataset, make_dataset

pytestmark = pytest.mark.usefixtures("patience")

MIB = 1 << 20
MB = 1e6
STEP_S = 0.02
"""The pause of a reader that reads on while the test waits for leases to end."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """About 30 chunks of 1 MiB."""
    return make_dataset(tmp_path_factory.mktemp("dataset"), 300, 100_000)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderDirectory]:
    """The allocation directory of this test's processes, and of the nodes that they start."""
    monkeypatch.setattr(reader_allocation, "_FIRST_S", PATIENCE_S)  # no byte before the rate
    with own_node_memory():
        made = FolderDirectory()
        yield made
        made.close()


@pytest.fixture
def nodes(
    directory: FolderDirectory, dataset: PeerDataset, tmp_path: Path
) -> Iterator[list[NodeProcess]]:
    with ring_of(tmp_path / "cluster", dataset, 2) as made:
        yield made


def test_a_job_draws_its_budget_from_the_store_through_the_cluster_and_hits_are_free(
    directory: FolderDirectory, dataset: PeerDataset, nodes: list[NodeProcess]
) -> None:
    rate = 8 * MB
    directory.allocate_remote_io("resnet", rate, origin="hand")
    reader = JobReader(dataset, nodes, "resnet")
    before, began = dataset.from_store_bytes(), time.monotonic()
    reader.read()
    took_s, fetched = time.monotonic() - began, dataset.from_store_bytes() - before
    assert fetched >= reader.object_bytes
    assert reader.used_bytes == fetched
    assert took_s >= (fetched - 0.25 * rate - MIB) / rate
    reader.read()  # nothing is asked of the store, so nothing waits
    files = reader.files
    assert reader.source.read_many(files) == [reader.reader.read(f, 0, f.length) for f in files]
    assert reader.used_bytes == fetched
    eventually(
        lambda: reader.allocation.statistics().held_bytes == reader.peers.cached_bytes() > 0,
        "what the cluster holds",
    )
    reader.close()


def test_many_files_at_once_are_paid_for_chunk_by_chunk(
    directory: FolderDirectory, dataset: PeerDataset, nodes: list[NodeProcess]
) -> None:
    rate = 10 * MB
    directory.allocate_remote_io("resnet", rate, origin="hand")
    reader = JobReader(dataset, nodes, "resnet")
    files, before, began = reader.files, dataset.from_store_bytes(), time.monotonic()
    found = reader.source.read_many(files)
    took_s, fetched = time.monotonic() - began, dataset.from_store_bytes() - before
    assert found == [reader.reader.read(file, 0, file.length) for file in files]
    assert reader.used_bytes == fetched
    assert took_s >= (fetched - 0.25 * rate - MIB) / rate
    reader.close()


def test_a_job_does_not_wait_for_a_poorer_one(
    directory: FolderDirectory,
    dataset: PeerDataset,
    nodes: list[NodeProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A minute for a chunk: the other one may be late.
    monkeypatch.setattr(reader_allocation, "FLOOR_BYTES_PER_S", 16 << 10)
    directory.allocate_remote_io("poor", 0, origin="hand")  # the floor
    poor, rich = JobReader(dataset, nodes, "poor"), JobReader(dataset, nodes, "rich")
    reading = threading.Thread(target=poor.read)
    reading.start()
    eventually(lambda: poor.allocation.statistics().waiting == 1, "a reader that waits")
    rich.read()
    assert poor.allocation.statistics().waiting == 1  # for a chunk that the nodes have by now
    directory.allocate_remote_io("poor", 256 << 10, origin="hand")
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    assert poor.used_bytes <= 3 * MIB  # the rest was cached when it was read
    assert poor.used_bytes + rich.used_bytes >= poor.object_bytes
    poor.close()
    rich.close()


def test_the_nodes_together_keep_a_datasets_quota(
    directory: FolderDirectory, dataset: PeerDataset, nodes: list[NodeProcess]
) -> None:
    reader = JobReader(dataset, nodes, "")
    of, quota = reader.snapshot.dataset, 24 * MIB
    name, id = of.name, of.id.hex()
    reader.read()
    eventually(lambda: reader.peers.cached_bytes() > quota, "chunks on the SSDs")

    def of_nodes() -> list[tuple[str, int]]:
        return [(each.job, each.cache_bytes) for each in directory.leases() if each.cache_bytes]

    eventually(lambda: of_nodes() == [("cache cluster r", 256 * MIB)] * 2, "the nodes' leases")
    directory.allocate_cache_size(name, id, quota, origin="allocator")
    eventually(lambda: kept_quotas(nodes) == quota, "both nodes' parts")
    began = time.monotonic()
    eventually(lambda: 0 < reader.peers.cached_bytes() <= quota, "the quota")
    assert time.monotonic() - began < scaled_by_load(10)

    def missed_bytes() -> int:
        before = dataset.from_store_bytes()
        reader.read()
        return dataset.from_store_bytes() - before

    # Neither the SSDs nor the nodes' memories have more than the quota, but for a chunk in each
    # node that waits for its SSD.
    least = reader.object_bytes - quota - 2 * MIB
    eventually(lambda: missed_bytes() >= least, "the nodes are at their quotas")
    held = reader.peers.cached_bytes()  # not before: one node may be above its part still
    for _ in range(3):
        assert missed_bytes() >= least
        assert held <= reader.peers.cached_bytes() <= quota
    directory.allocate_cache_size(name, id, 0, origin="allocator")
    eventually(lambda: reader.peers.cached_bytes() == 0, "nothing is cached")
    # The last chunk that was to be written to an SSD is in memory until its writer looks again.
    eventually(lambda: missed_bytes() >= reader.object_bytes, "nothing is in memory")
    directory.allocate_cache_size(name, id, quota, origin="allocator")
    eventually(lambda: reader.read() or reader.peers.cached_bytes() > 0, "chunks on the SSDs")
    directory.allocate_cache_size(name, id, None, origin="allocator")
    eventually(lambda: kept_quotas(nodes) == 0, "no quota")
    reader.close()


def test_a_node_that_is_lost_is_gone_from_the_estimate_and_no_read_fails(
    directory: FolderDirectory, dataset: PeerDataset, nodes: list[NodeProcess]
) -> None:
    reader = JobReader(dataset, nodes, "resnet")
    capacity = ClusterCapacity(reader.settings, 1.0)
    reader.read()
    eventually(lambda: reader.peers.cached_bytes() > reader.object_bytes * 0.9, "all is cached")
    held, whole = reader.peers.cached_bytes(), capacity()[0]
    stop, failures, few = threading.Event(), [], reader.chunks[:4]

    def read_on() -> None:
        while not stop.wait(STEP_S):
            try:
                for chunk in few:
                    reader.source.whole(chunk)
            except Exception as error:
                failures.append(error)

    reading = threading.Thread(target=read_on)
    reading.start()
    began = time.monotonic()
    nodes[0].end(signal.SIGKILL)
    eventually(lambda: reader.peers.cached_bytes() < held, "what one node caches")
    eventually(lambda: capacity()[0] == whole // 2, "the capacity of one node")
    eventually(lambda: len(directory.leases()) == 2, "the leases of one node and the reader")
    assert time.monotonic() - began < scaled_by_load(10)
    stop.set()
    reading.join(PATIENCE_S)
    reader.read()
    assert failures == []
    reader.close()


def test_a_mount_pays_for_what_nodes_fetch_and_says_what_they_cache(
    directory: FolderDirectory, dataset: PeerDataset, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    rate = 20 * MB
    directory.allocate_remote_io("resnet", rate, origin="hand")
    with mounted(tmp_path / "m", dataset, nodes, "--job", "resnet") as root:

        def allocation() -> dict[str, Any]:
            return dict(json.loads((root / ".dieselfs/stats.json").read_text())["allocation"])

        eventually(lambda: allocation()["allowed_bytes_per_s"] == rate, "the rate")
        before = dataset.from_store_bytes()
        for path in sorted(root.rglob("00*")):
            assert len(path.read_bytes()) == 100_000
        fetched = dataset.from_store_bytes() - before
        assert fetched >= dataset.bytes
        # The thread that keeps its lease may be late with a small object, which is no dataset's.
        assert 0 <= fetched - allocation()["used_bytes"] < 4096
        eventually(lambda: allocation()["held_bytes"] > 0.9 * dataset.bytes, "what is cached")

        def is_in_the_lease() -> bool:
            leases = directory.leases()
            [lease] = [each for each in leases if each.job == "resnet"]
            [job] = present_jobs([], [*leases, replace(lease, reader="0" * 16)])
            return bool(job.state.held_bytes == pytest.approx(allocation()["held_bytes"], rel=0.1))

        eventually(is_in_the_lease, "a lease that is renewed after the statistics have it")

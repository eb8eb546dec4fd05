"""Mounts that keep to what is allocated to their jobs, by an allocation directory in a folder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.job_table import read_job_table
from tests.dieselfs.cli.conftest import Dlcmd, put_pictures
from tests.dieselfs.cli.nodes_here import TASK, Daemon, NodeHere, nodes_here
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
MIB = 1 << 20


@pytest.fixture
def node(dlcmd: Dlcmd, pictures: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def drawings(dlcmd: Dlcmd, dataset: Path) -> Path:
    """The dataset `pets` in a hundred small chunks; the floor's rate reads them in 25 s."""
    put_pictures(dlcmd, dataset, 40_000, "--chunk-size", "64KiB", "--order", "path")
    return dataset


@pytest.fixture
def slow_node(dlcmd: Dlcmd, drawings: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def directory(node: NodeHere) -> FolderDirectory:
    return directory_of(node)


def directory_of(node: NodeHere) -> FolderDirectory:
    return FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")


def allocation(node: NodeHere) -> dict[str, Any]:
    return dict(node.statistics()["allocation"])


def read_all(node: NodeHere, pictures: Path) -> None:
    for source in pictures.rglob("*.jpg"):
        shown = node.mountpoint / source.relative_to(pictures)
        assert shown.read_bytes() == source.read_bytes()


def test_a_jobs_remote_io_is_kept_and_given_back(slow_node: NodeHere, drawings: Path) -> None:
    node, directory = slow_node, directory_of(slow_node)
    directory.allocate_remote_io("resnet", FLOOR_BYTES_PER_S, origin="hand")
    node.mount("--job", "resnet")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == FLOOR_BYTES_PER_S, "the rate")
    with running(lambda: read_all(node, drawings)):
        [lease] = eventually(
            lambda: [each for each in directory.leases() if each.used_bytes_per_s], "what is used"
        )
        found = allocation(node)
        directory.allocate_remote_io("resnet", None, origin="hand")
    assert (found["job"], found["origin"]) == ("resnet", "hand")
    assert (lease.job, lease.dataset) == ("resnet", "pets")
    assert lease.allowed_bytes_per_s == FLOOR_BYTES_PER_S
    assert lease.dataset_bytes >= 160 * 40_000
    assert allocation(node)["used_bytes"] >= 160 * 40_000
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] is None, "no limit")
    node("umount", node.mountpoint)
    eventually(lambda: not directory.leases(), "the lease given back")


def test_readers_that_wait_for_their_budget_do_not_keep_a_mount_from_ending(
    slow_node: NodeHere, drawings: Path
) -> None:
    node = slow_node
    directory_of(node).allocate_remote_io(TASK, 0, origin="hand")
    daemon = node.mount()
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == FLOOR_BYTES_PER_S, "the floor")
    outcomes: list[bytes | int] = []

    def read(path: Path) -> None:
        try:
            outcomes.append(path.read_bytes())
        except OSError as error:
            outcomes.append(error.errno or 0)

    files = sorted(drawings.rglob("*.jpg"))
    shown = [node.mountpoint / file.relative_to(drawings) for file in files]
    readers = [threading.Thread(target=read, args=(path,)) for path in shown]
    for reader in readers:
        reader.start()
    eventually(lambda: allocation(node)["waiting"] > 0, "a reader that waits")
    os.kill(daemon.pid, 15)
    eventually(lambda: not Path(f"/proc/{daemon.pid}").exists(), "the end of the mount")
    for reader in readers:
        reader.join(PATIENCE_S)
    contents = {file.read_bytes() for file in files}
    assert {found for found in outcomes if isinstance(found, bytes)} <= contents


def test_a_datasets_quota_reaches_the_tier_of_its_readers(
    node: NodeHere, directory: FolderDirectory, pictures: Path, tmp_path: Path
) -> None:
    tier = tmp_path / "ssd"
    node.mount("--ssd", str(tier), "--ssd-size", "64MiB")
    dataset = json.loads((node.mountpoint / ".dieselfs/dataset.json").read_text())
    [lease] = eventually(directory.leases, "a lease")
    directory.allocate_cache_size("pets", lease.dataset_id, 12 * MIB, origin="allocator")
    eventually(lambda: allocation(node)["quota_bytes"] == 12 * MIB, "the quota")
    # The mount shows the quota before its tier has it.
    quotas = (tier / "allocated.json").read_text
    kept = json.loads(eventually(quotas, "the tier's quotas", ignored=FileNotFoundError))
    assert kept == {lease.dataset_id: 12 * MIB}
    assert dataset["dataset"] == lease.dataset
    read_all(node, pictures)
    eventually(lambda: allocation(node)["held_bytes"] > 0, "chunks on the SSD")


def test_set_io_and_set_cache_change_a_running_mount(
    node: NodeHere, pictures: Path, tmp_path: Path
) -> None:
    options = ("--ssd", str(tmp_path / "ssd"), "--ssd-size", "64MiB", "--memory", "4MiB")
    node.mount("--job", "resnet", *options)
    eventually(lambda: allocation(node)["age_s"] is not None, "the directory's first answer")
    assert allocation(node)["allowed_bytes_per_s"] is None
    [said] = node("alloc", "set-io", "resnet", "1MB/s", "--json").records
    assert said["readers"] == 1
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == MIB, "the rate")
    assert node("alloc", "set-cache", "pets", "12MiB").code == 0
    eventually(lambda: allocation(node)["quota_bytes"] == 12 * MIB, "the quota")
    before, began = allocation(node)["used_bytes"], time.monotonic()
    read_all(node, pictures)
    used, elapsed = allocation(node)["used_bytes"] - before, time.monotonic() - began
    assert used > 600_000
    assert used <= MIB * (elapsed + 0.5) + (64 << 10)  # a burst, and a chunk of 32 KiB
    shown = node("alloc", "show", "resnet", "--json").records[0]
    assert (shown["io_bytes_per_s"], shown["io_origin"]) == (MIB, "hand")
    assert (shown["quota_bytes"], shown["readers"][0]["dataset"]) == (12 * MIB, "pets")
    eventually(lambda: "The cache answers" in explained(node, "resnet"), "a reason")
    node("alloc", "set-io", "resnet", "none")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] is None, "no limit")


def test_the_region_of_a_readers_ssd_is_the_least_quota(
    node: NodeHere, directory: FolderDirectory, dlcmd: Dlcmd, pictures: Path, tmp_path: Path
) -> None:
    node.mount("--ssd", str(tmp_path / "ssd"), "--ssd-size", "64MiB")
    [lease] = eventually(
        lambda: [each for each in directory.leases() if each.region_bytes], "a lease with a region"
    )
    assert lease.region_bytes == 4 * MIB
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIESELFS_MEMORY_FOLDER", str(node.memory))
        refused = dlcmd("alloc", "set-cache", "pets", "3MiB")
    assert (refused.code, "give at least 4.0 MiB" in refused.err) == (2, True)


def test_a_profile_is_a_row_of_a_job_table(
    slow_node: NodeHere, drawings: Path, tmp_path: Path
) -> None:
    node = slow_node
    node.mount("--job", "resnet")
    node("alloc", "set-io", "resnet", "256KiB/s")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == 256 << 10, "the rate")
    with running(lambda: read_all(node, drawings)):
        eventually(lambda: allocation(node)["used_bytes"], "a read")
        # The mount looks at its readers once a second, and twice in these, also if it is late.
        found = node("alloc", "profile", node.mountpoint, "--seconds", "5")
        [record] = node("alloc", "profile", node.mountpoint, "--seconds", "5", "--json").records
        node("alloc", "set-io", "resnet", "none")
    assert "only a lower bound" in found.err
    assert (record["job"], record["dataset"]) == ("resnet", "pets")
    assert record["speed_is_lower_bound"]
    assert record["waited_share"] > 0.1
    assert 0 < record["speed_bytes_per_s"] < 2 * MIB
    table = tmp_path / "jobs.csv"
    table.write_bytes(found.out)
    [job] = read_job_table(table)
    assert (job.name, job.dataset, job.repeats_items) == ("resnet", "pets", True)
    assert job.dataset_bytes == allocation(node)["dataset_bytes"]


def test_a_profile_of_nothing(node: NodeHere, dlcmd: Dlcmd, pictures: Path) -> None:
    node.mount("--job", "resnet")
    idle = dlcmd("alloc", "profile", node.mountpoint, "--seconds", "2")
    assert "nothing was read meanwhile" in idle.err
    assert "no DieselFS mount" in dlcmd("alloc", "profile", node.mountpoint.parent).err


def explained(node: NodeHere, job: str) -> str:
    return " ".join(node("alloc", "show", job, "--explain").lines)


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Do some work in a thread beside the block, and wait for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_mount_without_a_job_asks_for_nothing_and_has_no_budget(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_JOB_ID", raising=False)
        [made] = node("mount", "pets", node.mountpoint, "--no-index", "--json").records
    node.daemons.append(Daemon(made["pid"], Path(made["log"])))
    read_all(node, pictures)
    found = allocation(node)
    assert (found["job"], found["allowed_bytes_per_s"], found["used_bytes"]) == ("", None, 0)
    node("umount", node.mountpoint)

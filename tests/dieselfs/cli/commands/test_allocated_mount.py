"""Mounts that keep to what is allocated to their jobs, by an allocation directory in a folder."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import TASK, NodeHere, nodes_here
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
MIB = 1 << 20


@pytest.fixture
def node(dlcmd: Dlcmd, pictures: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def directory(node: NodeHere) -> FolderDirectory:
    return FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")


def allocation(node: NodeHere) -> dict[str, Any]:
    return dict(node.statistics()["allocation"])


def read_all(node: NodeHere, pictures: Path) -> None:
    for source in pictures.rglob("*.jpg"):
        shown = node.mountpoint / source.relative_to(pictures)
        assert shown.read_bytes() == source.read_bytes()


def test_a_jobs_remote_io_is_kept_and_given_back(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    directory.allocate_remote_io("resnet", 5e6, origin="hand")
    node.mount("--job", "resnet")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == 5e6, "the rate")
    read_all(node, pictures)
    found = allocation(node)
    assert (found["job"], found["origin"]) == ("resnet", "hand")
    assert found["used_bytes"] >= 160 * 5000
    [lease] = eventually(
        lambda: [each for each in directory.leases() if each.used_bytes_per_s], "what is used"
    )
    assert (lease.job, lease.dataset, lease.allowed_bytes_per_s) == ("resnet", "pets", 5e6)
    assert lease.dataset_bytes >= 160 * 5000
    directory.allocate_remote_io("resnet", None, origin="hand")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] is None, "no limit")
    node("umount", node.mountpoint)
    eventually(lambda: not directory.leases(), "the lease given back")


def test_readers_that_wait_for_their_budget_do_not_keep_a_mount_from_ending(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    directory.allocate_remote_io(TASK, 0, origin="hand")
    daemon = node.mount()
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == 256 << 10, "the floor")
    outcomes: list[bytes | int] = []

    def read(path: Path) -> None:
        try:
            outcomes.append(path.read_bytes())
        except OSError as error:
            outcomes.append(error.errno or 0)

    files = sorted(pictures.rglob("*.jpg"))
    shown = [node.mountpoint / file.relative_to(pictures) for file in files]
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
    kept = json.loads((tier / "allocated.json").read_text())
    assert kept == {lease.dataset_id: 12 * MIB}
    assert dataset["dataset"] == lease.dataset
    read_all(node, pictures)
    eventually(lambda: allocation(node)["held_bytes"] > 0, "chunks on the SSD")


def test_a_mount_without_a_job_asks_for_nothing_and_has_no_budget(
    node: NodeHere, directory: FolderDirectory, pictures: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_JOB_ID", raising=False)
        node("mount", "pets", node.mountpoint, "--no-index")
    read_all(node, pictures)
    found = allocation(node)
    assert (found["job"], found["allowed_bytes_per_s"], found["used_bytes"]) == ("", None, 0)
    node("umount", node.mountpoint)

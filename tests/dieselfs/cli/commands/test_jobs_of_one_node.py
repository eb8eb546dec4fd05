"""Jobs that share a node's memory and its master: each pays for what it asked for first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S
from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import TASK, NodeHere, nodes_here
from tests.eventually import PATIENCE_S, eventually, scaled_by_load

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
MIB = 1 << 20


@pytest.fixture
def node(dlcmd: Dlcmd, photographs: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def directory(node: NodeHere) -> FolderDirectory:
    return FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")


def allocation(node: NodeHere) -> dict[str, Any]:
    return dict(node.statistics()["allocation"])


def read_all(node: NodeHere, pictures: Path) -> None:
    for source in sorted(pictures.rglob("*.jpg")):
        shown = node.mountpoint / source.relative_to(pictures)
        assert shown.read_bytes() == source.read_bytes()


@pytest.fixture
def both(node: NodeHere, directory: FolderDirectory, tmp_path: Path) -> Iterator[list[NodeHere]]:
    """A mount of a poor job, whose server leads the task, and one of a job without a limit."""
    rich = replace(node, mountpoint=tmp_path / "rich")
    rich.mountpoint.mkdir()
    directory.allocate_remote_io("poor", 0, origin="hand")
    directory.allocate_remote_io("rich", 1e9, origin="hand")
    node.mount("--job", "poor")
    rich.mount("--job", "rich")
    try:
        eventually(lambda: allocation(node)["allowed_bytes_per_s"] == FLOOR_BYTES_PER_S, "a rate")
        # The other part is that of the reader that fetches for it in the master's process.
        eventually(lambda: (allocation(rich)["allowed_bytes_per_s"] or 0) > 1e8, "a rate")
        yield [node, rich]
    finally:
        rich("umount", "--lazy", rich.mountpoint)


def test_a_rich_job_does_not_wait_at_the_pace_of_a_poor_one(
    both: list[NodeHere], directory: FolderDirectory, photographs: Path
) -> None:
    poor, rich = both
    files = sorted(photographs.rglob("*.jpg"))
    readers = [
        threading.Thread(
            target=(poor.mountpoint / file.relative_to(photographs)).read_bytes, daemon=True
        )
        for file in files[::20]
    ]
    for reader in readers:
        reader.start()
    eventually(lambda: allocation(poor)["waiting"] >= 3, "readers of the poor job that wait")
    began, took_s = time.monotonic(), list[float]()

    def read() -> None:
        read_all(rich, photographs)
        took_s.append(time.monotonic() - began)

    reader = threading.Thread(target=read)
    reader.start()
    # Leases show it for some seconds.
    eventually(
        lambda: (
            sum(each.used_bytes_per_s for each in directory.leases() if each.job == "rich") > 1e6
        ),
        "what the rich job has paid",
    )
    reader.join(PATIENCE_S)
    # 32 MB are 122 s of the poor job's rate.
    assert took_s[0] < scaled_by_load(20)
    for reader in readers:
        reader.join(scaled_by_load(20))
        assert not reader.is_alive()
    paid = allocation(poor)["used_bytes"]
    # Its burst, what it waited for, and the chunk that passed last.
    elapsed_s = time.monotonic() - began + 20
    assert paid <= FLOOR_BYTES_PER_S * elapsed_s + 2 * MIB
    leases = [lease for lease in directory.leases() if lease.job == "rich"]
    assert len(leases) == 2  # its own, and that of the master's process
    assert all(lease.dataset_bytes > 30 * MIB for lease in leases)


READ = "import sys; print(sum(len(open(path, 'rb').read()) for path in sys.argv[1:]))"


@contextmanager
def reader_of(node: NodeHere, job: str, files: list[Path]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that reads files for a job."""
    paths = [str(node.mountpoint / file) for file in files]
    process = subprocess.Popen(
        [sys.executable, "-c", READ, *paths],
        env={**os.environ, "DIESELFS_JOB": job},
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def begin(node: NodeHere, directory: FolderDirectory, job: str, file: Path, rate: float) -> None:
    """Read a file for a job, and wait until the mount knows the job's rate: the job's first reads
    wait a second for that at most, and what they use is in no rate."""
    with reader_of(node, job, [file]) as reader:
        reader.communicate(timeout=PATIENCE_S)
    eventually(
        lambda: (job, rate) in {(of.job, of.allowed_bytes_per_s) for of in directory.leases()},
        f"the rate of job {job}",
    )


@pytest.mark.parametrize("front", ["erofs", "fuse"])
def test_one_mount_serves_several_jobs_and_each_pays_for_its_misses(
    node: NodeHere, directory: FolderDirectory, photographs: Path, front: str
) -> None:
    directory.allocate_remote_io("poor", 0, origin="hand")
    directory.allocate_remote_io("rich", 1e9, origin="hand")
    node.mount("--job", "callers", "--front", front)
    files = sorted(file.relative_to(photographs) for file in photographs.rglob("*.jpg"))
    begin(node, directory, "poor", files[0], FLOOR_BYTES_PER_S)
    begin(node, directory, "rich", files[80], 1e9)
    with reader_of(node, "poor", files[1:80]) as poor:
        began = time.monotonic()
        with reader_of(node, "rich", files[81:]) as rich:
            # Leases show it for some seconds.
            eventually(
                lambda: [
                    lease
                    for lease in directory.leases()
                    if lease.job == "rich" and lease.used_bytes_per_s > 1e6
                ],
                "what the rich job pays",
            )
            total, _ = rich.communicate(timeout=PATIENCE_S)
        assert int(total) == len(files[81:]) * 200_000
        # 16 MB are 61 s of the poor job's rate.
        assert time.monotonic() - began < scaled_by_load(20)
        assert poor.poll() is None
        assert allocation(node)["job"] == TASK
        # The kernel's own readahead is the mount's.
        assert allocation(node)["used_bytes"] <= 2 * MIB
        directory.allocate_remote_io("poor", None, origin="hand")
        total, _ = poor.communicate(timeout=PATIENCE_S)
        assert int(total) == 79 * 200_000


READ_BY_LIST = """
import json, sys, time
root, listed = sys.argv[1:]
def fetched():
    return json.load(open(f"{root}/.dieselfs/stats.json"))["plan"]["fetched"]
for number, path in enumerate(open(f"{root}/.dieselfs/shuffle/{listed}").read().splitlines()):
    while number % 10 == 0 and fetched() <= number // 10:
        time.sleep(0.01)
    open(f"{root}/{path}", "rb").read()
"""
"""A reader that a busy machine does not let leave the prefetcher behind."""


def test_what_is_fetched_for_a_plan_is_paid_for_by_the_job_that_tells_it(
    node: NodeHere, directory: FolderDirectory
) -> None:
    directory.allocate_remote_io(TASK, 0, origin="hand")
    node.mount("--job", "callers")
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", READ_BY_LIST, node.mountpoint, "seed=1,epoch=0,group=4"],
        env={**os.environ, "DIESELFS_JOB": "rich"},
        check=True,
        timeout=PATIENCE_S,
    )
    # 32 MB are 122 s of the rate of the mount's own job.
    assert time.monotonic() - began < scaled_by_load(20)
    assert node.statistics()["plan"]["fetched"] > 10
    assert allocation(node)["used_bytes"] <= 4 * MIB


def test_where_threads_of_the_kernel_read_the_mounts_own_job_pays(
    node: NodeHere, directory: FolderDirectory, photographs: Path
) -> None:
    node.mount("--job", "callers", "--front", "erofs-loop")
    files = sorted(file.relative_to(photographs) for file in photographs.rglob("*.jpg"))
    with reader_of(node, "rich", files[:40]) as rich:
        assert rich.communicate(timeout=PATIENCE_S)[0]
    assert {lease.job for lease in directory.leases()} == {TASK}
    assert allocation(node)["used_bytes"] > 40 * 200_000

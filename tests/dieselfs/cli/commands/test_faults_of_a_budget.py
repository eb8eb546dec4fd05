"""Mounts of a job that is held to little: nothing fails, hangs or takes the store for slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S
from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import NodeHere, nodes_here
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
RATE = FLOOR_BYTES_PER_S
"""No reader has less: 0.26 MB/s."""


@pytest.fixture
def node(dlcmd: Dlcmd, photographs: Path, tmp_path: Path) -> Iterator[NodeHere]:
    with nodes_here(dlcmd, tmp_path, 1) as [made]:
        yield made


@pytest.fixture
def directory(node: NodeHere) -> FolderDirectory:
    made = FolderDirectory(node.memory / f"dieselfs-allocations-{os.geteuid()}")
    made.allocate_remote_io("slow", RATE, origin="hand")
    return made


def allocation(node: NodeHere) -> dict[str, Any]:
    return dict(node.statistics()["allocation"])


class Readers:
    """Threads that read files of a mount, each one file."""

    def __init__(self, node: NodeHere, photographs: Path, count: int) -> None:
        self.failed: list[int | None] = []
        self.right = 0
        files = sorted(photographs.rglob("*.jpg"))[:: 160 // count][:count]
        self._threads = [
            threading.Thread(
                target=self._read, args=(node.mountpoint / file.relative_to(photographs), file)
            )
            for file in files
        ]

    def _read(self, shown: Path, source: Path) -> None:
        try:
            content = shown.read_bytes()
        except OSError as error:
            self.failed.append(error.errno)
            return
        assert content == source.read_bytes()
        self.right += 1

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a reader hangs"


def server_pid(node: NodeHere) -> int:
    document = json.loads((node.mountpoint / ".dieselfs/dataset.json").read_text())
    return int(document["server_pid"])


def waits(node: NodeHere) -> None:
    eventually(lambda: allocation(node)["waiting"] > 0, "a reader that waits for its budget")


def test_a_job_held_to_little_makes_nothing_look_sick(
    node: NodeHere, directory: FolderDirectory, photographs: Path, tmp_path: Path
) -> None:
    node.mount("--job", "slow", "--ssd", str(tmp_path / "ssd"), "--ssd-size", "64MiB")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == RATE, "the rate")
    readers = Readers(node, photographs, 40)
    with readers.reading():
        eventually(lambda: allocation(node)["used_bytes"] > 8 * RATE, "seconds of the rate")
        found = node.statistics()
        status = Path(f"/proc/{server_pid(node)}/status").read_text()
        directory.allocate_remote_io("slow", None, origin="hand")
    assert readers.failed == []
    assert readers.right == 40
    assert found["store"]["retry"] == {"retries": 0, "given_up": 0}
    assert found["store"]["hedge"]["hedges"] == 0
    assert found["store"]["deadline"]["abandoned"] == 0
    assert (found["store"]["limit"]["decreases"], found["store"]["limit"]["failures"]) == (0, 0)
    assert (found["ssd"]["in_service"], found["ssd"]["failures"]) == (True, 0)
    assert found["failed_reads"]["total"] == 0
    [threads] = [line.split()[1] for line in status.splitlines() if line.startswith("Threads:")]
    assert int(threads) < 32 + 40  # those of READs that wait, and the others of a mount
    after = node.statistics()
    assert (after["ssd"]["in_service"], after["store"]["retry"]["given_up"]) == (True, 0)


def test_an_unmount_while_readers_wait_ends_when_they_have_their_files(
    node: NodeHere, directory: FolderDirectory, photographs: Path
) -> None:
    """A reader that has a file open still reads at the job's rate: no way around its share."""
    rate = 8 * RATE
    directory.allocate_remote_io("slow", rate, origin="hand")
    daemon = node.mount("--job", "slow")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == rate, "the rate")
    readers = Readers(node, photographs, 20)
    with readers.reading():
        waits(node)
        node("umount", "--lazy", node.mountpoint)
    eventually(lambda: not Path(f"/proc/{daemon.pid}").exists(), "the end of the mount")
    eventually(lambda: directory.leases() == [], "no lease")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_while_readers_wait_is_followed_by_another(
    node: NodeHere, directory: FolderDirectory, photographs: Path, number: signal.Signals
) -> None:
    daemon = node.mount("--job", "slow")
    eventually(lambda: allocation(node)["allowed_bytes_per_s"] == RATE, "the rate")
    readers = Readers(node, photographs, 20)
    with readers.reading():
        waits(node)
        if number == signal.SIGTERM:
            os.kill(daemon.pid, number)
        else:
            killed = server_pid(node)
            os.kill(killed, number)
            eventually(
                lambda: (
                    allocation(node)["allowed_bytes_per_s"] == RATE and server_pid(node) != killed
                ),
                "another server, with the same budget",
                ignored=(OSError, ValueError, KeyError),
            )
            waits(node)
            directory.allocate_remote_io("slow", None, origin="hand")
    if number == signal.SIGTERM:
        eventually(lambda: not Path(f"/proc/{daemon.pid}").exists(), "the end of the mount")
        assert subprocess.run(["mountpoint", "-q", node.mountpoint], check=False).returncode
    else:
        assert readers.right + len(readers.failed) == 20
        assert [lease.job for lease in directory.leases() if lease.pid == server_pid(node)] == [
            "slow"
        ]

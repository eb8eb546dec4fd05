"""Real mounts and their leases: announced, widened by a refresh, taken back, left behind by
SIGKILL, and missed without harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.commit_log import CommitLog, find_dataset
from chunkstore.leases import Lease, read_leases
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.fuse.starting import mount_request
from dieselfs.housekeeping import dataset_users
from dieselfs.housekeeping.garbage import GarbageKind, find_garbage
from dieselfs.housekeeping.retention import pins
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import PATIENCE_S, eventually
from tests.mount.mounting import is_alive

pytestmark = [
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE"),
    pytest.mark.timeout(300),
]
HOUR_NS = 3600 * 10**9
PATIENT = f"""
from dieselfs.cli import main
from dieselfs.fuse.supervision import shutdown
from dieselfs.housekeeping import lease_keeper
lease_keeper.GOODBYE_S = shutdown.ORDERLY_S = shutdown.FORCED_S = {PATIENCE_S}
main()
"""
"""The program of a mount that waits for the deletion of its lease, which else expires if a busy
machine takes longer than a second for it."""


@pytest.fixture
def store(dataset: Path, tmp_path: Path) -> LocalDirectory:
    return LocalDirectory(tmp_path / "data/dieselfs/store")


def leases(store: LocalDirectory) -> list[Lease]:
    ref = find_dataset(store, "pets")
    assert ref is not None
    return list(read_leases(store, ref).values.values())


def generations(store: LocalDirectory) -> list[tuple[int, ...]]:
    return sorted(lease.generations for lease in leases(store))


def mount(dlcmd: Dlcmd, mountpoint: Path) -> int:
    """The daemon's process id."""
    [record] = dlcmd("mount", "pets", mountpoint, "--json").records
    pid: int = record["pid"]
    return pid


@pytest.fixture
def patient_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_request, "this_program", lambda: [sys.executable, "-c", PATIENT])


@pytest.mark.usefixtures("patient_ends")
def test_a_mount_holds_a_lease_until_its_end(
    dlcmd: Dlcmd, dataset: Path, store: LocalDirectory, mountpoint: Path
) -> None:
    pid = mount(dlcmd, mountpoint)
    eventually(lambda: leases(store), "the lease")
    [lease] = leases(store)
    server = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())["server_pid"]
    assert (lease.generations, lease.pid, lease.host) == ((2,), server, socket.gethostname())
    assert pins(store, "pets", time.time_ns()).generations == (2,)
    refused = dlcmd("snapshot", "rm", "pets@2", "--yes")
    assert (refused.code, "running mount" in refused.err) == (1, True)
    refused = dlcmd("dataset", "rm", "pets", "--yes")
    assert (refused.code, f"(process {server}): unmount it" in refused.err) == (1, True)
    assert (mountpoint / "cat/1.jpg").read_bytes() == (dataset / "cat/1.jpg").read_bytes()
    (dataset / "new.jpg").write_bytes(b"new")
    assert dlcmd("put", f"{dataset}/", "pets", "-j", "1").code == 0
    with open(mountpoint / "cat/1.jpg", "rb"):
        assert dlcmd("mount", "--refresh", "pets", mountpoint).code == 0
        assert (mountpoint / "new.jpg").read_bytes() == b"new"
        eventually(lambda: generations(store) == [(2,), (3,)], "both generations")
        pruned = dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "--yes")
        assert (pruned.code, pruned.out) == (0, b"")
    eventually(lambda: generations(store) == [(3,)], "the end of the old one with its last file")
    assert dlcmd("umount", mountpoint).code == 0
    eventually(lambda: not is_alive(pid), "the daemon's end")
    eventually(lambda: not leases(store), "the lease's end")
    assert len(dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "--yes").lines) == 1


@pytest.mark.usefixtures("patient_ends")
def test_a_dataset_that_was_unmounted_just_now_is_removed(
    dlcmd: Dlcmd,
    dataset: Path,
    store: LocalDirectory,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The server of a mount on a busy machine needs more than 2 s for its end.
    monkeypatch.setattr(dataset_users.lasting_users, "__defaults__", (PATIENCE_S,))
    mount(dlcmd, mountpoint)
    eventually(lambda: leases(store), "the lease")
    assert dlcmd("umount", mountpoint).code == 0
    assert dlcmd("dataset", "rm", "pets", "--yes").code == 0


def test_a_mount_that_begins_beside_a_purge_does_not_begin_without_its_chunks(
    dlcmd: Dlcmd, dataset: Path, store: LocalDirectory, mountpoint: Path
) -> None:
    (dataset / "new.jpg").write_bytes(b"new")
    assert dlcmd("put", f"{dataset}/", "pets", "-j", "1").code == 0
    ref = find_dataset(store, "pets")
    assert ref is not None
    log = CommitLog(store, ref)
    chunk = log.read(2).added[0].id
    log.append(3, [], [chunk])
    for info in list(store.list("datasets/pets/snapshots/")):
        store.delete(info.key)
    store.delete(chunk_key("pets", chunk))
    refused = dlcmd("mount", "pets@3", mountpoint)
    assert refused.code != 0
    assert "a purge has deleted snapshot 3-" in refused.err
    assert not os.path.ismount(mountpoint)


def test_what_a_killed_mount_leaves_ends_by_time(
    dlcmd: Dlcmd, store: LocalDirectory, mountpoint: Path
) -> None:
    pid = mount(dlcmd, mountpoint)
    eventually(lambda: leases(store), "the lease")
    server = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())["server_pid"]
    for process in (pid, server):
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not is_alive(pid) and not is_alive(server), "its end")
    [lease] = leases(store)
    assert dlcmd("snapshot", "rm", "pets@2", "--yes").code == 1
    now_ns = time.time_ns()
    # The snapshot is published, and pins too.
    for info in list(store.list("datasets/pets/snapshots/")):
        store.delete(info.key)
    assert pins(store, "pets", now_ns).generations == (2,)
    assert pins(store, "pets", now_ns + 2 * HOUR_NS).generations == ()
    found = find_garbage(store, "pets", now_ns=now_ns + 8 * 24 * HOUR_NS)
    assert [entry.kind for entry in found.removable] == [GarbageKind.LEASE]
    assert str(lease.pid) in found.removable[0].reason


@pytest.fixture
def read_only_store(store: LocalDirectory) -> Iterator[Path]:
    """The store, which nobody may write to from now on, not even root."""
    commands = [["mount", "--bind"], ["mount", "-o", "remount,ro,bind"]]
    for command in commands:
        made = subprocess.run([*command, store.root, store.root], check=False, capture_output=True)
        if made.returncode:
            subprocess.run(["umount", "-l", store.root], check=False, capture_output=True)
            pytest.skip("may not mount read-only here")
    yield store.root
    subprocess.run(["umount", "-l", store.root], check=True)


def test_a_store_that_may_not_be_written_to_is_told_and_mounted(
    dlcmd: Dlcmd, store: LocalDirectory, mountpoint: Path, request: pytest.FixtureRequest
) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert dlcmd("snapshot", "tag", "pets", "v1").code == 0
    request.getfixturevalue("read_only_store")
    [record] = dlcmd("mount", "pets@v1", mountpoint, "--json").records
    log = Path(record["log"])
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    eventually(lambda: "cannot write the lease" in log.read_text(), "the warning")
    assert log.read_text().count("cannot write the lease") == 1
    assert leases(store) == []
    assert dlcmd("umount", mountpoint).code == 0
    eventually(lambda: not is_alive(record["pid"]), "the daemon's end")


def test_a_store_that_may_only_be_read_is_mounted_without_a_published_snapshot(
    dlcmd: Dlcmd,
    dataset: Path,
    store: LocalDirectory,
    mountpoint: Path,
    request: pytest.FixtureRequest,
) -> None:
    for info in list(store.list("datasets/pets/snapshots/")):
        store.delete(info.key)
    request.getfixturevalue("read_only_store")
    assert dlcmd("snapshot", "create", "pets").code == 1  # it is asked to publish
    data = store.root.parent
    shutil.rmtree(data / "snapshots")
    shutil.rmtree(data / "index")  # another user, with an index of its own
    mounted = dlcmd("mount", "pets", mountpoint)
    assert mounted.code == 0, mounted.err
    assert "cannot publish the snapshot, which stays on this machine" in mounted.err
    assert "Read-only file system" in mounted.err
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    assert dlcmd("umount", mountpoint).code == 0
    again = dlcmd("mount", "pets", mountpoint)  # the snapshot is here now
    assert (again.code, "publish" in again.err) == (0, False)
    assert dlcmd("umount", mountpoint).code == 0

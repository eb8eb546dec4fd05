"""A real mount that reads through real cache nodes: each chunk leaves the store once, and a node
that dies or stops is not noticed by readers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dieselfs.cache.advice.trace_file import read_trace
from dieselfs.cache.node.task_folder import VARIABLE
from dieselfs.errors import MountpointBusy
from dieselfs.fuse.mounts.mountpoint import unmount
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.cluster.cluster_of_nodes import (
    SECRET,
    NodeProcess,
    ring_of,
)
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import PATIENT, run_forked
from tests.mount.mounting import is_alive
from tests.peers.task_nodes import DLCMD, NAME, PeerDataset, make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    return make_dataset(tmp_path_factory.mktemp("dataset"), 300, 100_000)


@contextmanager
def mounted(
    folder: Path,
    dataset: PeerDataset,
    nodes: list[NodeProcess],
    *flags: str,
    is_patient: bool = True,
) -> Iterator[Path]:
    """By `dlcmd mount`, in the background, with 64 MiB of memory of its own task. A patient one
    waits for nodes that stall."""
    mountpoint = folder / "mnt"
    mountpoint.mkdir(parents=True)
    cache_cluster = "r@" + ",".join(str(node.address) for node in nodes)
    secret_file = folder / "secret"
    secret_file.write_text(SECRET)
    secret_file.chmod(0o600)
    command = [sys.executable, str(DLCMD), "mount", "--json", "--no-index", *flags]
    command += ["--memory", "64MiB", "--prefill", "0", "--task", f"{os.getpid()}-{folder.name}"]
    command += [
        "--cache-cluster",
        cache_cluster,
        "--cache-cluster-secret-file",
        str(secret_file),
        NAME,
        str(mountpoint),
    ]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("DIESELFS_R")},
        "DIESELFS_STORE": f"disk://{dataset.disk}",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "DIESELFS_SNAPSHOTS": str(dataset.snapshot.parent),
        **({PATIENT: "1"} if is_patient else {}),
    }
    said = run_forked(command, env=environment)
    assert said.returncode == 0, said.stderr
    record = json.loads(said.stdout)
    try:
        yield mountpoint
    except BaseException:
        print(Path(record["log"]).read_text())
        raise
    finally:
        # Whoever lists the mounts of this machine uses this one for a moment.
        eventually(lambda: unmount(mountpoint) is None, "unmounted", ignored=MountpointBusy)
        eventually(lambda: not is_alive(record["pid"]), "the end of the mount")


def read_all(mountpoint: Path, dataset: PeerDataset, part: Callable[[int], object]) -> None:
    """Every file, each compared; `part` is told how many were read."""
    for number, (path, size, digest) in enumerate(json.loads(dataset.paths.read_text())):
        content = (mountpoint / path).read_bytes()
        assert len(content) == size
        assert xxhash.xxh3_64_hexdigest(content) == digest
        part(number)


def statistics(mountpoint: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((mountpoint / ".dieselfs/stats.json").read_text())
    return found


def ring_of_mount(mountpoint: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = statistics(mountpoint)["cache_cluster"]
    return found


def object_bytes(dataset: PeerDataset) -> int:
    with Snapshot.open(dataset.snapshot) as snapshot:
        chunks = [snapshot.chunk(number) for number in range(snapshot.chunk_count)]
        return sum(chunk.head_bytes + chunk.payload_bytes for chunk in chunks)


def test_mounts_read_the_store_once_and_do_not_notice_that_nodes_stop_and_die(
    dataset: PeerDataset, tmp_path: Path
) -> None:
    with ring_of(tmp_path / "cache_cluster", dataset, 2) as nodes:
        before = dataset.from_store_bytes()
        with mounted(tmp_path / "first", dataset, nodes) as mountpoint:
            read_all(mountpoint, dataset, lambda number: None)
            shown = ring_of_mount(mountpoint)
            assert (shown["nodes"], shown["nodes_up"]) == (2, 2)
            assert shown["bytes_from_nodes"] >= dataset.bytes
            assert shown["bytes_from_store"] == 0
        # Beside chunks a mount reads and writes some small objects of its own.
        assert 0 <= dataset.from_store_bytes() - before - object_bytes(dataset) < 4096

        faults = {60: (nodes[0], signal.SIGSTOP), 160: (nodes[1], signal.SIGKILL)}

        def between(number: int) -> None:
            if number in faults:
                node, fault = faults[number]
                node.send(fault)

        second = mounted(tmp_path / "second", dataset, nodes, is_patient=False)
        with second as mountpoint:
            with ThreadPoolExecutor(1) as threads:
                threads.submit(read_all, mountpoint, dataset, between).result(PATIENCE_S)
            shown = ring_of_mount(mountpoint)
            assert shown["bytes_from_nodes"] > 0
            assert shown["bytes_from_store"] > 0
            eventually(lambda: ring_of_mount(mountpoint)["nodes_up"] == 0, "both are gone")


def test_the_own_ssd_is_asked_before_the_cluster_and_keeps_what_that_sends(
    dataset: PeerDataset, tmp_path: Path
) -> None:
    ssd = ("--ssd", str(tmp_path / "ssd"), "--ssd-size", "128MiB", "--ssd-warmup")
    with ring_of(tmp_path / "cache_cluster", dataset, 1) as nodes:
        with mounted(tmp_path / "first", dataset, nodes, *ssd) as mountpoint:
            eventually(lambda: statistics(mountpoint)["ssd"]["warmup"]["state"] == "done", "warm")
            shown = ring_of_mount(mountpoint)
            assert shown["bytes_from_nodes"] >= dataset.bytes
            assert shown["bytes_from_store"] == 0
        before = dataset.from_store_bytes()
        with mounted(tmp_path / "second", dataset, nodes, *ssd) as mountpoint:
            eventually(lambda: statistics(mountpoint)["ssd"]["in_service"], "an open SSD")
            read_all(mountpoint, dataset, lambda number: None)
            ssd_reads, cluster = statistics(mountpoint)["ssd"], ring_of_mount(mountpoint)
            assert ssd_reads["misses"] == 0
            assert ssd_reads["hits"] > 0
            assert (cluster["bytes_from_nodes"], cluster["bytes_from_store"]) == (0, 0)
        # Beside chunks a mount reads and writes some small objects of its own.
        assert dataset.from_store_bytes() - before < 4096


def shown_by(*command: str) -> list[dict[str, Any]]:
    said = run_forked(
        [sys.executable, str(DLCMD), *command, "--json"],
        env={**os.environ, "DIESELFS_CACHE_CLUSTER_SECRET": SECRET, PATIENT: "1"},
        timeout=PATIENCE_S,
    )
    said.check_returncode()
    return [json.loads(line) for line in said.stdout.splitlines()]


def published(trace: Path) -> set[str]:
    """The jobs whose records a cache node has seen."""
    return {each.specification.job for each in read_trace(trace).publications}


def test_nodes_with_two_policies_are_compared_and_one_is_changed(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see the requests of a mount's job and what it publishes."""
    trace = tmp_path / "trace"
    (tmp_path / "m").mkdir()  # short: sockets lie below it
    monkeypatch.setenv(VARIABLE, str(tmp_path / "m"))  # the place of job records
    flags = (
        ("--ssd-policy", "historic", "--record-trace", str(trace)),
        ("--ssd-policy", "lru"),
    )
    nodes = [
        NodeProcess(tmp_path / str(at), dataset.disk, "r", flags=policy)
        for at, policy in enumerate(flags)
    ]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_until_ready()
        cluster = "r@" + ",".join(str(node.address) for node in nodes)

        def policies() -> dict[str, dict[str, Any]]:
            shown = {one["node"]: one["policy"] for one in shown_by("cluster", cluster)}
            return {at: shown[str(node.address)] for at, node in zip("AB", nodes, strict=True)}

        with mounted(tmp_path / "t", dataset, nodes, "--job", "resnet") as mountpoint:
            read_all(mountpoint, dataset, lambda number: None)
            eventually(lambda: {"resnet"} == published(trace), "the node sees what is published")
        shown = policies()
        assert [shown[at]["name"] for at in "AB"] == ["historic", "lru"]
        assert shown["A"]["refused_bytes"] > 0, "a bucket that nobody has read before"
        assert shown["A"]["written_bytes"] == 0
        eventually(lambda: policies()["B"]["written_bytes"] > 0, "an LRU admits everything")

        ssd = "--ssd", str(nodes[0].folder / "ssd")

        def counted_jobs() -> set[tuple[str, str]]:
            rows = shown_by("cache", "ls", "-v", *ssd)
            counts = [row["cache_policy"] for row in rows if "cache_policy" in row]
            return {(row["bucket"], row["job"]) for row in counts if row["refused_bytes"]}

        eventually(lambda: counted_jobs() == {(NAME, "resnet")}, "counts name the job")
        shown_by("cache", "policy", "all", "--shadow", "future", *ssd)
        changed = {"name": "all", "shadow": "future"}
        eventually(lambda: policies()["A"].items() >= changed.items(), "the other policy acts")
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.end(signal.SIGKILL)

"""`dlcmd alloc run --kubernetes`: a real allocator, a pod in the double of the API server, and a
real mount that reads its decisions from the file that kubelet writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import NodeHere, nodes_here
from tests.eventually import eventually
from tests.services.kubernetes_server import NAMESPACE, KubernetesServer, write_podinfo

MIB = 1 << 20
needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    server = KubernetesServer()
    server.start()
    yield server
    server.stop()


@contextmanager
def allocator(
    server: KubernetesServer, folder: Path, *flags: str
) -> Iterator[subprocess.Popen[str]]:
    """Run it with a shared memory of its own, as in a pod of its own; it ends well by SIGTERM."""
    memory = folder / "allocator"
    memory.mkdir()
    environment = os.environ | {
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
        "DIESELFS_MEMORY_FOLDER": str(memory),
    }
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    command = [sys.executable, "-m", "dieselfs", "alloc", "run", "--kubernetes", *flags]
    with (folder / "allocator.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def annotations(dataset: str) -> dict[str, str]:
    values = {"job": "resnet", "dataset": dataset, "speed": "80MB/s", "passes": "10"}
    return {f"dieselfs.io/{key}": value for key, value in values.items()}


@needs_fuse
def test_a_mount_in_a_pod_keeps_to_its_annotations(
    server: KubernetesServer, dlcmd: Dlcmd, pictures: Path, tmp_path: Path
) -> None:
    podinfo = tmp_path / "podinfo"
    podinfo.mkdir()

    def kubelet() -> bool:
        write_podinfo(podinfo / "annotations", server.annotations("train-0"))
        return True

    size = sum(path.stat().st_size for path in pictures.rglob("*.jpg"))
    server.add("train-0", annotations("pets"))
    kubelet()
    with (
        nodes_here(dlcmd, tmp_path, 1) as [node],
        allocator(server, tmp_path, "--remote-io", "20MB/s", "--cache", "16MiB"),
    ):
        node.environment["DIESELFS_POD_ANNOTATIONS"] = str(podinfo / "annotations")
        node.mount("--ssd", str(tmp_path / "ssd"), "--ssd-size", "64MiB")

        def follows() -> bool:
            found = node.statistics()["allocation"]
            assert found["job"] == "resnet"
            return (found["allowed_bytes_per_s"], found["quota_bytes"]) == (20 * MIB, size)

        eventually(lambda: kubelet() and follows(), "the mount keeps to the annotations")
        read_all(node, pictures)
        assert node.statistics()["allocation"]["used_bytes"] > 0
        given = server.annotations("train-0")
        quotas = (tmp_path / "ssd/allocated.json").read_text
        # The mount shows the quota before its tier has it.
        kept = eventually(quotas, "the tier's quotas", ignored=FileNotFoundError)
        assert json.loads(kept) == {given["dieselfs.io/cache-dataset-id"]: size}
    assert "WARNING" not in (tmp_path / "allocator.log").read_text()
    assert server.annotations("train-0") == given  # it stays when the allocator ends


def read_all(node: NodeHere, pictures: Path) -> None:
    for source in pictures.rglob("*.jpg"):
        shown = node.mountpoint / source.relative_to(pictures)
        assert shown.read_bytes() == source.read_bytes()


def test_an_allocator_that_may_not_list_pods_says_which_rule_is_missing(
    server: KubernetesServer, url: str, tmp_path: Path
) -> None:
    with (
        server.denying("list"),
        allocator(server, tmp_path, "--remote-io", "1MB/s", "--cache", "0"),
    ):
        log = tmp_path / "allocator.log"
        eventually(lambda: "verbs: [list]" in log.read_text(), "the rule")
        assert f"namespace {NAMESPACE}" in log.read_text()


def test_without_a_cluster_it_says_so(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    refused = dlcmd("alloc", "run", "--kubernetes", "--remote-io", "1MB/s", "--cache", "1GiB")
    assert refused.code == 2
    assert "no Kubernetes cluster is known here" in refused.err

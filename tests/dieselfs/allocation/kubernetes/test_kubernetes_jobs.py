"""Jobs of annotated pods, from the API server's double to decisions and back to annotations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.allocation.allocator.allocator import Allocator
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.kubernetes.kubernetes_jobs import KubernetesJobs
from dieselfs.allocation.kubernetes.official_client import OfficialClient
from dieselfs.allocation.kubernetes.pod_jobs import DatasetFacts
from dieselfs.allocation.kubernetes.request_pace import BackOff
from dieselfs.allocation.policies.naming import named_policy
from tests.dieselfs.allocation.kubernetes.conftest import opened
from tests.dieselfs.allocation.made_leases import entry, lease
from tests.eventually import eventually
from tests.services.kubernetes_server import KubernetesServer

IO = 100_000_000
GIB = 1 << 30
PREFIX = "dieselfs.io/"
STORED = {"imagenet": DatasetFacts("1" * 32, GIB)}


def asks(job: str, dataset: str = "imagenet", **more: str) -> dict[str, str]:
    """Return the annotations of a pod; underscores stand for hyphens."""
    values = {"job": job, "dataset": dataset, "speed": "80MB/s", "passes": "10", **more}
    return {PREFIX + name.replace("_", "-"): value for name, value in values.items()}


class Cluster:
    """An allocator of the double's pods, with a clock that a test moves."""

    def __init__(self, api: OfficialClient, folder: Path, *, readers_publish: bool = False) -> None:
        self.directory = FolderDirectory(folder)
        self.pods = KubernetesJobs(
            api, api.namespace, PREFIX, STORED.get, readers_publish=readers_publish
        )
        self.now, self.io = 0.0, float(IO)
        self.allocator = Allocator(
            named_policy("fifo"), lambda: (2 * GIB, self.io), lambda: self.now, self.pods.leases
        )
        self.pods.start()

    def beat(self) -> bool:
        self.now += 1
        self.allocator.beat(self.directory)
        self.pods.beat(self.directory)
        return True

    def sees(self, server: KubernetesServer) -> bool:
        """Return whether the watch has brought all annotations that pods have."""
        seen = self.pods._watched.pods() or {}
        return all(server.annotations(pod.name) == pod.annotations for pod in seen.values())

    def rates(self) -> dict[str, float]:
        return {each.job: each.bytes_per_s for each in self.directory.decisions().ios}

    def declared(self) -> dict[str, int]:
        return {each.job: each.dataset_bytes for each in self.directory.jobs()}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackOff, "FIRST_S", 0.05)
    monkeypatch.setattr(BackOff, "LONGEST_S", 0.1)


@pytest.fixture
def cluster(api: OfficialClient, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(api, tmp_path / "directory")
    yield found
    found.pods.close()


def given(server: KubernetesServer, pod: str) -> dict[str, str]:
    names = ("cache", "cache-dataset-id", "remote-io")
    found = server.annotations(pod)
    return {name: found[PREFIX + name] for name in names if PREFIX + name in found}


def test_pods_are_declared_and_told_their_shares(
    server: KubernetesServer, cluster: Cluster
) -> None:
    for number in range(2):
        server.add(f"resnet-{number}", asks("resnet"), gpus=8)
    server.add("bert", asks("bert", "text", dataset_bytes="2GiB", speed="20MB/s"))
    server.add("other", {"someone": "else"})
    eventually(lambda: cluster.beat() and given(server, "bert") and given(server, "resnet-1"))
    assert cluster.declared() == {"bert": 2 * GIB, "resnet": GIB}
    [_, resnet] = cluster.directory.jobs()
    assert (resnet.gpus, resnet.passes, resnet.source) == (16, 10.0, "kubernetes:training")
    rates = cluster.rates()
    assert sum(rates.values()) == pytest.approx(IO)
    eventually(lambda: cluster.beat() and not cluster.pods.waiting)
    shares = [int(given(server, f"resnet-{number}")["remote-io"]) for number in range(2)]
    assert sum(shares) == pytest.approx(rates["resnet"], rel=0.03)
    assert given(server, "resnet-0")["cache"] == str(GIB)
    assert given(server, "resnet-0")["cache-dataset-id"] == "1" * 32
    assert "cache-dataset-id" not in given(server, "bert")  # whichever has the name
    assert server.annotations("other") == {"someone": "else"}


def test_a_job_goes_with_its_pods(server: KubernetesServer, cluster: Cluster) -> None:
    server.add("a", asks("a"))
    server.add("b", asks("b"))
    eventually(lambda: cluster.beat() and set(cluster.rates()) == {"a", "b"})
    server.set_phase("a", "Succeeded")
    eventually(lambda: cluster.beat() and set(cluster.rates()) == {"b"})
    server.delete("b")
    eventually(lambda: cluster.beat() and not cluster.declared())
    eventually(lambda: cluster.beat() and not cluster.rates())


def test_a_pod_that_waits_is_declared_and_gets_nothing_yet(
    server: KubernetesServer, cluster: Cluster
) -> None:
    server.add("a", asks("a"), phase="Pending")
    eventually(lambda: cluster.beat() and cluster.declared())
    assert cluster.rates() == {}
    server.set_phase("a", "Running")
    eventually(lambda: cluster.beat() and given(server, "a"))


def test_the_label_of_a_controller_names_the_job(
    server: KubernetesServer, cluster: Cluster
) -> None:
    annotations = asks("")
    del annotations[PREFIX + "job"]
    server.add("a-x7k2p", annotations, {"batch.kubernetes.io/job-name": "a"})
    eventually(lambda: cluster.beat() and set(cluster.rates()) == {"a"})


def test_a_job_that_was_declared_by_hand_stays(server: KubernetesServer, cluster: Cluster) -> None:
    cluster.directory.put_job(entry("a", speed_bytes_per_s=1e6))
    server.add("a", asks("a"))
    server.add("b", asks("b"))
    eventually(lambda: cluster.beat() and set(cluster.declared()) == {"a", "b"})
    server.delete("a")
    server.delete("b")
    eventually(lambda: cluster.beat() and set(cluster.declared()) == {"a"})
    assert cluster.directory.jobs()[0].speed_bytes_per_s == 1e6


def test_readers_that_publish_leases_say_what_they_have(
    server: KubernetesServer, api: OfficialClient, tmp_path: Path
) -> None:
    cluster = Cluster(api, tmp_path / "directory", readers_publish=True)
    for number in range(2):
        server.add(f"a-{number}", asks("a"))
    eventually(lambda: cluster.beat() and cluster.declared())
    assert cluster.rates() == {}  # nobody reads yet
    for number, share in enumerate((70e6, 30e6)):
        reader = lease("a", host=f"a-{number}", dataset_bytes=GIB, allowed_bytes_per_s=share)
        cluster.directory.beat(reader, 60.0)
    eventually(lambda: cluster.beat() and given(server, "a-0") and given(server, "a-1"))
    shares = [given(server, f"a-{number}")["remote-io"] for number in range(2)]
    assert shares == ["70000000", "30000000"]
    cluster.pods.close()


def test_a_version_that_is_forgotten_lists_again(
    server: KubernetesServer, cluster: Cluster
) -> None:
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and cluster.declared())
    eventually(lambda: server.state.watches == 1)
    lists = len(server.requests("list"))
    with server.state.changed:  # nobody is told of this pod
        server.add("b", asks("b"))
        server.state.events.clear()
        server.compact()
    server.end_watches()
    eventually(lambda: cluster.beat() and set(cluster.declared()) == {"a", "b"})
    assert len(server.requests("list")) == lists + 1


def test_a_conflict_is_tried_again(server: KubernetesServer, cluster: Cluster) -> None:
    server.state.conflicts = 2
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and given(server, "a"))
    assert len(server.requests("patch")) >= 3


def test_a_pod_that_is_deleted_while_it_is_patched(
    server: KubernetesServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.state.gone_first.add("a")
    server.add("a", asks("a"))
    server.add("b", asks("b"))
    eventually(lambda: cluster.beat() and given(server, "b"))
    eventually(lambda: cluster.beat() and set(cluster.declared()) == {"b"})
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_server_that_is_away_changes_nothing(
    server: KubernetesServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and given(server, "a"))
    former = given(server, "a")
    server.stop()
    eventually(lambda: cluster.beat() and "pods count as they were seen last" in caplog.text)
    for _ in range(50):
        cluster.beat()
    assert set(cluster.rates()) == {"a"}
    cluster.io /= 2
    eventually(lambda: cluster.beat() and "keep the annotations that they have" in caplog.text)
    server.start()
    eventually(lambda: cluster.beat() and given(server, "a") != former)
    assert given(server, "a")["remote-io"] == str(IO // 2)
    eventually(lambda: "pods are seen again" in caplog.text)
    assert caplog.text.count("pods count as they were seen last") == 1


def test_a_rule_that_is_missing_is_said_once(
    server: KubernetesServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with server.denying("patch", "watch"):
        server.add("a", asks("a"))
        eventually(lambda: cluster.beat() and "verbs: [patch]" in caplog.text)

        def is_refused() -> bool:
            server.end_watches()  # one may have begun before it was denied
            return bool(cluster.beat()) and "verbs: [watch]" in caplog.text

        eventually(is_refused)
        asked = len(server.requests("patch"))
        eventually(lambda: cluster.beat() and len(server.requests("patch")) > asked + 2)
    eventually(lambda: cluster.beat() and given(server, "a"))
    # A watch that begins after the last change has nothing to say before it ends.
    eventually(lambda: server.end_watches() or "pods are seen again" in caplog.text)
    for verb in ("patch", "watch"):
        assert caplog.text.count(f"verbs: [{verb}]") == 1


def test_annotations_edited_by_hand(
    server: KubernetesServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.add("a", asks("a", passes="often", order="told"))
    server.add("b", asks("b", "unknown"))
    server.add("c", {PREFIX + "dataset": "imagenet"})
    server.add("d", asks("d", speed="800Mbit/s"))
    eventually(lambda: cluster.beat() and given(server, "a") and given(server, "d"))
    # A share that is still to be written would replace what is edited before anybody sees it.
    eventually(lambda: cluster.beat() and not cluster.pods.waiting)
    server.annotate("a", remote_io="plenty")
    eventually(lambda: cluster.beat() and given(server, "a")["remote-io"] != "plenty")
    for said in (
        "pod a: ignored: dieselfs.io/passes of 'often': it must be a number",
        "pod a: ignored: dieselfs.io/remote-io of 'plenty'",
        "pod b: the size of dataset unknown is not known: annotate it with dieselfs.io/dataset-b",
        "pod c: it names no job: annotate it with dieselfs.io/job",
        "pod d: ignored: dieselfs.io/speed of '800Mbit/s'",
    ):
        assert caplog.text.count(said) == 1, said
    assert set(cluster.declared()) == {"a"}
    assert set(cluster.rates()) == {"a", "d"}  # the speed of d is not known


def test_a_pod_that_reads_no_longer_loses_what_it_was_given(
    server: KubernetesServer, cluster: Cluster
) -> None:
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and given(server, "a"))
    server.annotate("a", dataset=None)
    eventually(lambda: cluster.beat() and not given(server, "a"))


def test_an_allocator_that_lost_its_directory_finds_the_jobs_in_their_pods(
    server: KubernetesServer, cluster: Cluster, tmp_path: Path
) -> None:
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and given(server, "a"))
    eventually(lambda: cluster.beat() and not cluster.pods.waiting)
    patches = len(server.requests("patch"))
    new = Cluster(opened(server, tmp_path), tmp_path / "another")
    eventually(lambda: new.beat() and set(new.rates()) == {"a"})
    new.beat()
    assert new.pods.waiting == 0
    assert len(server.requests("patch")) == patches
    new.pods.close()


def test_small_changes_are_not_written(server: KubernetesServer, cluster: Cluster) -> None:
    server.add("a", asks("a"))
    eventually(lambda: cluster.beat() and given(server, "a"))
    eventually(lambda: cluster.beat() and not cluster.pods.waiting)
    patches = len(server.requests("patch"))
    cluster.directory.allocate_remote_io("a", IO * 0.985, origin="hand")
    cluster.beat()
    assert cluster.pods.waiting == 0
    cluster.directory.allocate_remote_io("a", IO * 0.9, origin="hand")
    eventually(lambda: cluster.beat() and len(server.requests("patch")) > patches)


def test_a_thousand_pods_cost_two_requests_a_second(
    server: KubernetesServer, tmp_path: Path
) -> None:
    for number in range(1000):
        server.add(f"pod-{number}", asks(f"job-{number % 20}"))
    cluster = Cluster(opened(server, tmp_path, 2.0), tmp_path / "directory")
    eventually(lambda: cluster.beat() and len(server.requests("patch")) >= 5)
    assert cluster.pods.waiting > 900
    cluster.pods.close()
    times = sorted(each.at for each in server.requests())
    assert len(server.requests("list")) == 2
    assert len(times) >= 7
    # Two requests in each second; a busy machine may have the first ones wait for the server.
    assert times[-1] - times[0] > (len(times) - 1) / 2 - 1.0


def test_nothing_is_written_while_another_allocator_leads(
    server: KubernetesServer, tmp_path: Path
) -> None:
    for number in range(500):  # for 25 s: this thread may be late
        server.add(f"pod-{number}", asks("a"))
    cluster = Cluster(opened(server, tmp_path, 20.0), tmp_path / "directory")
    eventually(lambda: cluster.beat() and server.requests("patch"))
    cluster.pods.rest()
    assert cluster.pods.waiting == 0
    cluster.pods.close()
    assert len(server.requests("patch")) < 500


def test_less_is_written_before_more(server: KubernetesServer, cluster: Cluster) -> None:
    for job, rate in (("a", 10e6), ("b", 90e6)):
        cluster.directory.allocate_remote_io(job, rate, origin="hand")
        server.add(job, asks(job))
    eventually(lambda: cluster.beat() and given(server, "a") and given(server, "b"))
    # Whether a share is less is told by the annotations that the watch has shown.
    eventually(lambda: cluster.beat() and not cluster.pods.waiting and cluster.sees(server))
    patches = len(server.requests("patch"))
    for job, rate in (("a", 90e6), ("b", 10e6)):
        cluster.directory.allocate_remote_io(job, rate, origin="hand")
    cluster.beat()
    eventually(lambda: len(server.requests("patch")) == patches + 2)
    assert [each.name for each in server.requests("patch")[patches:]] == ["b", "a"]

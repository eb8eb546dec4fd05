"""The official client against the double of the API server: what it asks, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.allocation.kubernetes import official_client
from dieselfs.allocation.kubernetes.official_client import OfficialClient, configured
from dieselfs.allocation.kubernetes.pods import (
    Changed,
    PodChanged,
    PodGone,
    PodsDenied,
    PodsUnavailable,
    VersionExpired,
)
from dieselfs.errors import UsageError
from tests.services.kubernetes_server import ACCOUNT, NAMESPACE, KubernetesServer


def test_pods_are_listed_in_pages(
    server: KubernetesServer, api: OfficialClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_client, "PAGE", 2)
    for number in range(5):
        server.add(f"pod-{number}", {"dieselfs.io/job": "a"}, {"app": "x"}, gpus=4)
    found = api.pods()
    assert [pod.name for pod in found.pods] == [f"pod-{number}" for number in range(5)]
    assert found.version == str(server.state.version)
    assert len(server.requests("list")) == 3
    first = found.pods[0]
    assert (first.annotations, first.labels) == ({"dieselfs.io/job": "a"}, {"app": "x"})
    assert (first.gpus, first.phase, first.created_s) == (4, "Running", 1_795_507_200.0)


def test_a_watch_tells_changes_and_versions(server: KubernetesServer, api: OfficialClient) -> None:
    since = api.pods().version
    server.add("a", {})
    server.annotate("a", speed="1MB/s")
    server.delete("a")
    found: list[Changed] = []
    for change in api.watch(since):
        found.append(change)
        if change.pod is None:  # a bookmark
            break
    assert [(each.pod.name if each.pod else "", each.is_gone) for each in found] == [
        *[("a", False), ("a", False), ("a", True)],
        ("", False),
    ]
    assert found[-1].version == str(server.state.version)


def test_a_version_that_is_forgotten(server: KubernetesServer, api: OfficialClient) -> None:
    since = api.pods().version
    server.compact()
    with pytest.raises(VersionExpired, match="too old resource version"):
        list(api.watch(since))
    assert len(server.requests("watch")) == 1


def test_a_watch_that_is_silent_ends_without_a_fault(
    server: KubernetesServer, api: OfficialClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_client, "_SILENCE_S", 0.05)
    assert list(api.watch(api.pods().version)) == []


def test_a_patch_changes_its_annotations_alone(
    server: KubernetesServer, api: OfficialClient
) -> None:
    server.add("a", {"own": "stays", "old": "goes"})
    api.annotate(api.pods().pods[0], {"dieselfs.io/cache": "5", "old": None})
    assert server.annotations("a") == {"own": "stays", "dieselfs.io/cache": "5"}


def test_a_conflict_a_pod_that_is_gone_and_another_one_of_its_name(
    server: KubernetesServer, api: OfficialClient
) -> None:
    server.add("a", {})
    [pod] = api.pods().pods
    server.state.conflicts = 1
    with pytest.raises(PodChanged, match="modified"):
        api.annotate(pod, {"x": "1"})
    server.state.gone_first.add("a")
    with pytest.raises(PodGone, match="not found"):
        api.annotate(pod, {"x": "1"})
    server.add("a", {})
    with pytest.raises(PodGone, match="immutable"):
        api.annotate(pod, {"x": "1"})
    assert server.annotations("a") == {}


@pytest.mark.parametrize("verb", ["list", "watch", "patch"])
def test_a_rule_that_is_missing_is_named(
    server: KubernetesServer, api: OfficialClient, verb: str
) -> None:
    server.add("a", {})
    found = api.pods()
    calls = {
        "list": api.pods,
        "watch": lambda: list(api.watch(found.version)),
        "patch": lambda: api.annotate(found.pods[0], {"x": "1"}),
    }
    with server.denying(verb), pytest.raises(PodsDenied, match=f"to {verb} pods") as raised:
        calls[verb]()
    assert NAMESPACE in str(raised.value)
    assert ACCOUNT in str(raised.value)
    assert raised.value.hint is not None
    assert f'{{apiGroups: [""], resources: [pods], verbs: [{verb}]}}' in raised.value.hint


def test_a_server_that_is_away(server: KubernetesServer, api: OfficialClient) -> None:
    server.add("a", {})
    found = api.pods()
    server.stop()
    for call in (
        api.pods,
        lambda: list(api.watch(found.version)),
        lambda: api.annotate(found.pods[0], {"x": "1"}),
    ):
        with pytest.raises(PodsUnavailable, match="the API server http"):
            call()


def test_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="no Kubernetes cluster"):
        configured(str(tmp_path / "missing"))

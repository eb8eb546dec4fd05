"""The manifests of contrib/kubernetes: they fit the code, and allow what it does and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dieselfs.allocation.directory.pod_annotations import Annotations
from dieselfs.allocation.kubernetes.official_client import OfficialClient
from dieselfs.allocation.kubernetes.pod_jobs import DatasetFacts, PodJobs
from dieselfs.allocation.kubernetes.pod_json import pod_of
from dieselfs.allocation.kubernetes.pods import VERBS
from dieselfs.cache.jobs.job_name import ANNOTATIONS_PATH
from dieselfs.cache.jobs.pod_info import LABELS, PREFIX
from dieselfs.cli.commands.alloc_run import run_command
from tests.services.kubernetes_server import KubernetesServer

FOLDER = Path(__file__).parents[4] / "contrib/kubernetes"


def documents(name: str) -> dict[str, dict[str, Any]]:
    found = list(yaml.safe_load_all((FOLDER / name).read_text()))
    return {each["kind"]: each for each in found}


@pytest.fixture
def allocator() -> dict[str, dict[str, Any]]:
    return documents("allocator.yaml")


@pytest.fixture
def job() -> dict[str, Any]:
    return documents("training-job.yaml")["Job"]


def test_the_role_allows_every_request_of_the_code_and_no_other(
    server: KubernetesServer, api: OfficialClient, allocator: dict[str, dict[str, Any]]
) -> None:
    server.add("a", {})
    found = api.pods()
    server.annotate("a", x="1")
    for change in api.watch(found.version):
        assert change.pod is not None
        api.annotate(change.pod, {"x": "1"})
        break
    asked = {(each.resource, each.verb) for each in server.requests()}
    allowed = {
        (resource, verb)
        for rule in allocator["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group == ""
    }
    assert asked == allowed == {("pods", verb) for verb in VERBS}


def test_the_role_is_bound_to_the_account_of_the_deployment(
    allocator: dict[str, dict[str, Any]],
) -> None:
    namespaces = {each["metadata"]["namespace"] for each in allocator.values()}
    assert namespaces == {"training"}
    binding, account = allocator["RoleBinding"], allocator["ServiceAccount"]["metadata"]["name"]
    assert binding["roleRef"]["name"] == allocator["Role"]["metadata"]["name"]
    [subject] = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, "training")
    deployment = allocator["Deployment"]["spec"]
    assert deployment["template"]["spec"]["serviceAccountName"] == account
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items()


def test_the_command_of_the_deployment_is_understood(
    allocator: dict[str, dict[str, Any]],
) -> None:
    [container] = allocator["Deployment"]["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["dlcmd", "alloc", "run"]
    with click.Context(run_command) as context:
        run_command.parse_args(context, words[3:])
    assert context.params["kubernetes"] is True


def test_the_job_declares_itself(job: dict[str, Any]) -> None:
    template = job["spec"]["template"]
    annotations = Annotations(template["metadata"]["annotations"], PREFIX)
    asked = annotations.asked()
    assert asked is not None
    assert (asked.dataset, asked.passes, annotations.errors) == ("imagenet", 90, [])
    metadata = {"name": "resnet50-0-x7k2p", "uid": "1", **template["metadata"]}
    pod = pod_of({"metadata": metadata, "spec": template["spec"]})
    said: list[str] = []
    facts = DatasetFacts("1" * 32, 150 << 30)
    [found] = PodJobs(PREFIX, {"imagenet": facts}.get, said.append).of({"1": pod})
    entry = found.entry("kubernetes:training")
    assert entry is not None
    assert (entry.job, entry.gpus, said) == (job["metadata"]["name"], 4, [])


def test_the_job_is_told_its_annotations_where_readers_look(job: dict[str, Any]) -> None:
    spec = job["spec"]["template"]["spec"]
    [container], [volume] = spec["containers"], spec["volumes"]
    [mount] = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    items = volume["downwardAPI"]["items"]
    paths = {
        Path(mount["mountPath"], item["path"]): item["fieldRef"]["fieldPath"] for item in items
    }
    assert paths == {
        ANNOTATIONS_PATH: "metadata.annotations",
        ANNOTATIONS_PATH.with_name(LABELS): "metadata.labels",
    }
    assert "subPath" not in mount  # kubelet does not keep such a file fresh

"""What the downward API tells a process of its pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.cache.jobs import job_name as names
from dieselfs.cache.jobs.job_name import ANNOTATIONS_VARIABLE, annotations_path, job_name
from dieselfs.cache.jobs.pod_info import (
    PREFIX_VARIABLE,
    job_of_pod,
    parse_fields,
    pod_job_name,
    read_fields,
)
from tests.services.kubernetes_server import write_podinfo

VALUES = {
    "dieselfs.io/job": "résumé 'a' = \"b\"",
    "kubernetes.io/config.seen": "2026-11-24T13:00:00.1Z",
    "lines": 'one\ntwo\t\\three\x00\x1b\x7f and "four"\n',
    "others": "\u200b\ue000 é 漢字 🐋",
    "empty": "",
}


def test_fields_are_read_as_kubelet_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "annotations"
    write_podinfo(path, VALUES)
    assert read_fields(path) == VALUES


def test_escapes_of_go() -> None:
    assert parse_fields(r'a="\xc3\xa9\x41\u00e9\U0001f40b\a"') == {"a": "éAé🐋\a"}
    assert parse_fields(r'a="\xff\ud800\U00ffffff"') == {"a": "\ufffd\ufffd\ufffd"}


def test_lines_of_another_form_are_skipped() -> None:
    assert parse_fields('a\n="b"\nb="c"d"\nc="d\n\nd="e"\ne=f') == {"d": "e"}


def test_the_file_is_named_or_at_its_usual_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "annotations"
    monkeypatch.setattr(names, "ANNOTATIONS_PATH", usual)
    assert annotations_path({}) is None
    assert annotations_path({ANNOTATIONS_VARIABLE: "/named"}) == Path("/named")
    usual.touch()
    assert annotations_path({}) == usual
    assert annotations_path({ANNOTATIONS_VARIABLE: ""}) is None


def test_the_job_of_a_pod() -> None:
    by_controller = {"job-name": "plain", "batch.kubernetes.io/job-name": "batch"}
    labels = {**by_controller, "dieselfs.io/job": "labelled"}
    assert job_of_pod({"dieselfs.io/job": "annotated"}, labels, "dieselfs.io/") == "annotated"
    assert job_of_pod({}, labels, "dieselfs.io/") == "labelled"
    assert job_of_pod({}, labels, "example.org/") == "batch"
    assert job_of_pod({}, {"job-name": "plain"}, "dieselfs.io/") == "plain"
    assert job_of_pod({}, {}, "dieselfs.io/") == ""


def test_what_cannot_be_a_name_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    assert job_of_pod({"dieselfs.io/job": "a\nb"}, {"job-name": "plain"}, "dieselfs.io/") == "plain"
    assert "dieselfs.io/job: 'a\\nb' is no name for a job" in caplog.text


def test_a_process_is_of_its_pods_job(tmp_path: Path) -> None:
    environment = {ANNOTATIONS_VARIABLE: str(tmp_path / "annotations")}
    assert job_name(None, None, "task", environment) == "task"
    write_podinfo(tmp_path / "labels", {"batch.kubernetes.io/job-name": "batch"})
    assert job_name(None, None, "task", environment) == "batch"
    write_podinfo(tmp_path / "annotations", {"dieselfs.io/job": "a", "example.org/job": "b"})
    assert job_name(None, None, "task", environment) == "a"
    path = tmp_path / "annotations"
    assert pod_job_name(path, {PREFIX_VARIABLE: "example.org/"}) == "b"
    assert job_name(None, None, "task", {**environment, "SLURM_JOB_ID": "7"}) == "7"
    assert job_name("given", None, "task", environment) == "given"

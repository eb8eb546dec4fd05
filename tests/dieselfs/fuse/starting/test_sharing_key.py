"""Which mounts may share a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.ssd.settings import SsdSettings
from dieselfs.config import load_config
from dieselfs.dataset.address import DatasetAddress
from dieselfs.fuse.starting.mount_request import MountRequest, sharing_key
from dieselfs.fuse.starting.mount_settings import told_job

SSD = ReadSettings(ssd=SsdSettings(Path("/local/ssd")))


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_JOB_ID", "DIESELFS_JOB"):
        monkeypatch.delenv(variable, raising=False)


def key(place: str, settings: ReadSettings, job: str | None = None) -> str:
    config = load_config("memory://a", "memory://b")
    request = MountRequest(DatasetAddress("pets"), Path(place), job=job)
    told = told_job(config, request, settings)
    return sharing_key(config, request, Path("/snapshots/1"), told)


def test_mounts_that_differ_in_their_place_are_alike() -> None:
    for settings in (ReadSettings(), SSD):
        assert key("/mnt/a", settings) == key("/mnt/b", settings)


def test_a_server_reads_for_one_job_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    first, plain = key("/mnt", SSD), key("/mnt", ReadSettings())
    assert key("/mnt", SSD) == first
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    assert key("/mnt", SSD) != first
    assert key("/mnt", ReadSettings()) == plain, "no cache policy can tell the jobs apart"

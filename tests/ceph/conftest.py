"""Tests against a real Ceph, by librados and by its S3 gateway: `make test-ceph`. Without
DIESELFS_CEPH nothing here is collected."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

if not os.environ.get("DIESELFS_CEPH"):
    collect_ignore_glob = ["test_*.py"]

_SCRIPT = Path(__file__).parents[2] / "scripts" / "ceph.sh"
_POOL = "tests"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Ceph:
    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "ceph.conf"

    def pid(self, daemon: str) -> int:
        return int((self.folder / "sock" / f"{daemon}.pid").read_text())

    def start_osd(self) -> None:
        subprocess.run([_SCRIPT, "osd", self.folder], check=True, timeout=120)

    def rados_url(self) -> str:
        """Of an empty namespace."""
        return f"rados://{_POOL}/space-{next(_numbers)}?conf={self.conf}"

    def s3_url(self) -> str:
        """Of an empty bucket."""
        import boto3  # here, since each run of the tests imports this file

        name = f"bucket-{next(_numbers)}"
        client = boto3.client(
            "s3",
            endpoint_url="http://127.0.0.1:7480",
            region_name="us-east-1",
            aws_access_key_id="AK",
            aws_secret_access_key="SK",
        )
        client.create_bucket(Bucket=name)
        client.close()
        return f"s3://{name}/prefix?endpoint=http://127.0.0.1:7480&region=us-east-1"


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    folder = Path(tempfile.mkdtemp(prefix="dieselfs-ceph-"))  # paths of sockets must be short
    try:
        subprocess.run([_SCRIPT, "up", folder], check=True, timeout=300)
        command = ["ceph", "-c", folder / "ceph.conf", "osd", "pool", "create", _POOL, "8"]
        subprocess.run(command, check=True, timeout=60, capture_output=True)
        yield Ceph(folder)
    finally:
        subprocess.run([_SCRIPT, "down", folder], check=False, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SK")

"""`dlcmd jobs`, with two real mounts that share a tier."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually
from tests.own_node_memory import own_node_memory

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


@pytest.fixture
def memory() -> Iterator[None]:
    """Shared memory, and so a job registry, of this test alone."""
    with own_node_memory():
        yield


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "other"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-l", folder], check=False, stderr=subprocess.DEVNULL)


@needs_fuse
@pytest.mark.usefixtures("memory")
def test_mounts_publish_what_they_read(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, other: Path, tmp_path: Path
) -> None:
    ssd = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MiB", "--prefill", "0")
    future = ("--job", "resnet", "--ssd-policy", "future", "--shuffle", "seed=1,group=1")
    assert dlcmd("jobs", "--json").records == []
    assert dlcmd("mount", "pets", mountpoint, *ssd, *future).code == ExitCode.OK
    [found] = eventually(lambda: dlcmd("jobs", "--json").records, "the mount publishes")
    assert (found["job"], found["dataset"], found["length"]) == ("resnet", "pets", 1)
    assert 0 <= found["position_share"] <= 1

    assert dlcmd("mount", "pets", other, *ssd, "-o", "job=vit").code == ExitCode.OK
    path = other / "cat/1.jpg"
    path.read_bytes()
    assert {each["job"] for each in dlcmd("jobs", "--json").records} == {"resnet"}
    assert dlcmd("cache", "policy", "future", "--ssd", tmp_path / "ssd").code == ExitCode.OK

    def both() -> bool:
        return {each["job"] for each in dlcmd("jobs", "--json").records} == {"resnet", "vit"}

    eventually(both, "a policy that is chosen later makes the other mount publish")

    # Another choice refreshes the policy at once, which otherwise happens every 10 s.
    assert dlcmd("cache", "policy", "hybrid", "--ssd", tmp_path / "ssd").code == ExitCode.OK

    def knows_both_jobs() -> bool:  # each has an epoch to finish, and the next one
        [now] = dlcmd("why", path, "--json").records
        return now["ssd"]["policy"] is not None and now["ssd"]["policy"]["priority"] == 4.0

    eventually(knows_both_jobs, "the other mount's policy knows the first mount's job")
    lines = dlcmd("jobs").lines
    assert lines[0].split() == ["JOB", "DATASET", "READER", "EPOCH", "POSITION", "CHUNKS", "AGE"]
    for place in (mountpoint, other):
        assert dlcmd("umount", place).code == ExitCode.OK
    eventually(lambda: dlcmd("jobs", "--json").records == [], "mounts withdraw their records")


def test_a_name_that_is_none_is_refused(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    refused = dlcmd("mount", "pets", mountpoint, "--job", "a\nb")
    assert refused.code == ExitCode.USAGE
    assert "--job" in refused.err

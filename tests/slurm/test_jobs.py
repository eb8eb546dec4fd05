"""Jobs of a real Slurm come and go: they are declared, mounted for and forgotten by its hooks."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from tests.eventually import eventually, scaled_by_load
from tests.slurm.conftest import Configure, Site
from tests.slurm.slurm_cluster import IO_LICENSES, SlurmCluster

COMMENT = "--comment=sweep 7; dieselfs:dataset=pets,speed=114MB/s,passes=90,gpus=2"
MOUNTED = "--comment=dieselfs:dataset=pets,mount=yes"


@pytest.fixture
def gate(site: Site) -> Path:
    """A file that is not there, in a folder that users see."""
    found = site.folder / "gate"
    found.unlink(missing_ok=True)
    return found


def waiting_for(gate: Path) -> str:
    """Return the script of a job that runs until the file is there."""
    return f"echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo done"


def test_a_job_is_declared_while_it_runs(slurm: SlurmCluster, site: Site, gate: Path) -> None:
    job = slurm.submit(waiting_for(gate), COMMENT)
    slurm.until(job, "RUNNING")
    [entry] = eventually(site.directory.jobs, "the job is declared")
    assert (entry.job, entry.dataset, entry.passes, entry.gpus) == (job, "pets", 90, 2)
    assert entry.speed_bytes_per_s == 114 << 20
    assert entry.dataset_bytes >= 20 * 5000
    gate.touch()
    slurm.until(job, "COMPLETED")
    eventually(lambda: not site.declared(), "the job is forgotten")
    assert f"job {job}: alloc job rm {job}" in slurm.log.read_text()


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_a_job_that_is_cancelled_or_killed_is_forgotten(
    slurm: SlurmCluster, site: Site, gate: Path, signal: str
) -> None:
    job = slurm.submit(waiting_for(gate), COMMENT)
    eventually(lambda: site.declared() == [job], "the job is declared")
    slurm.until(job, "RUNNING")
    if signal == "KILL":
        slurm.run("scancel", "--full", "--signal=KILL", job)
        slurm.until(job, "FAILED", "CANCELLED")
    else:
        slurm.run("scancel", job)
        slurm.until(job, "CANCELLED")
    eventually(lambda: not site.declared(), "the job is forgotten")


def test_a_requeued_job_is_forgotten_until_it_runs_again(
    slurm: SlurmCluster, site: Site, gate: Path
) -> None:
    job = slurm.submit(waiting_for(gate), COMMENT, "--requeue")
    eventually(lambda: site.declared() == [job], "the job is declared")
    slurm.until(job, "RUNNING")
    slurm.run("scontrol", "requeue", job)
    eventually(lambda: not site.declared(), "the job is forgotten")
    eventually(lambda: site.declared() == [job], "the job is declared again")
    gate.touch()


def test_nodes_may_declare_instead_of_the_controller(
    slurm: SlurmCluster, site: Site, configure: Configure, gate: Path
) -> None:
    configure(DECLARE="nodes")
    job = slurm.submit(waiting_for(gate), "--nodes=2", COMMENT)
    added = f"job {job}: alloc job add {job} pets"
    eventually(
        lambda: slurm.log.exists() and slurm.log.read_text().count(added) == 2, "both say it"
    )
    assert site.declared() == [job]
    gate.touch()
    eventually(lambda: not site.declared(), "the job is forgotten")


def test_a_dataset_is_mounted_for_the_time_of_a_job(
    slurm: SlurmCluster, site: Site, configure: Configure, gate: Path
) -> None:
    configure(MOUNTS=site.mounts, DATASETS="imagenet*,pets")
    reads = f"cat {site.mounts}/$SLURM_JOB_ID/*.jpg | sha256sum; id -un; {waiting_for(gate)}"
    job = slurm.submit(reads, "--uid=nobody", "--gid=nogroup", "--chdir=/", MOUNTED)
    eventually(lambda: "begun" in slurm.output(job), "it has read", ignored=FileNotFoundError)
    assert {lease.job for lease in site.directory.leases()} == {job}
    assert (site.mounts / job / "0.jpg").stat().st_uid == 65534
    gate.touch()
    slurm.until(job, "COMPLETED")
    eventually(lambda: not (site.mounts / job).exists(), "the mount and its directory are gone")
    assert "nobody\nbegun\ndone" in slurm.output(job)
    content = b"".join(file.read_bytes() for file in sorted(site.pictures.iterdir()))
    assert hashlib.sha256(content).hexdigest() in slurm.output(job)
    assert site.declared() == []  # no speed was told


def test_a_killed_jobs_mount_is_unmounted(
    slurm: SlurmCluster, site: Site, configure: Configure, gate: Path
) -> None:
    configure(MOUNTS=site.mounts, DATASETS="pets")
    # It works in the mount, which is busy then.
    script = f"cd {site.mounts}/$SLURM_JOB_ID && {waiting_for(gate)}"
    job = slurm.submit(script, MOUNTED)
    eventually(lambda: slurm.output(job), "it has begun", ignored=FileNotFoundError)
    assert slurm.output(job) == "begun\n"
    slurm.run("scontrol", "update", f"JobId={job}", "Comment=another")
    slurm.run("scancel", "--full", "--signal=KILL", job)
    eventually(lambda: not (site.mounts / job).exists(), "the mount and its directory are gone")


def test_a_mount_that_takes_too_long_is_unmounted_all_the_same(
    slurm: SlurmCluster, site: Site, configure: Configure, tmp_path: Path
) -> None:
    dlcmd = tmp_path / "dlcmd"
    dlcmd.write_text(f"""#!/bin/sh
real={site.folder}/dlcmd
case "$*" in
*"--job="*) "$real" "$@"; exec tail -f /dev/null ;;
esac
exec "$real" "$@"
""")
    dlcmd.chmod(0o755)
    configure(MOUNTS=site.mounts, DATASETS="pets", DLCMD=dlcmd, MOUNT_LIMIT_S=10)
    job = slurm.submit(f"ls {site.mounts}/$SLURM_JOB_ID | wc -l", MOUNTED)
    slurm.until(job, "COMPLETED")
    assert slurm.output(job) == "20\n"
    assert "s, and ended" in slurm.log.read_text()
    eventually(lambda: not (site.mounts / job).exists(), "the mount and its directory are gone")


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("dieselfs:dataset=pets,sped=114MB/s", "'sped=114MB/s' in the comment: write dieselfs:"),
        ("dieselfs:dataset=pets,speed=114Mb/s", "not in bits"),
        ("dieselfs:dataset=--help,speed=114MB/s", "dataset of '--help' in the comment"),
        ("dieselfs:dataset=dogs,speed=1MB/s", "dogs"),
        ("dieselfs:dataset=pets,mount=yes", "DIESELFS_SLURM_MOUNTS is not set"),
    ],
)
def test_a_job_with_a_wrong_comment_runs(
    slurm: SlurmCluster, site: Site, comment: str, said: str
) -> None:
    job = slurm.submit("echo here", f"--comment={comment}")
    slurm.until(job, "COMPLETED")
    assert slurm.output(job) == "here\n"
    assert said in slurm.log.read_text()
    assert site.declared() == []
    eventually(lambda: slurm.node_states() == {"idle"}, "no node is drained")


def test_a_dataset_that_is_not_allowed_is_not_mounted(
    slurm: SlurmCluster, site: Site, configure: Configure
) -> None:
    configure(MOUNTS=site.mounts, DATASETS="imagenet*")
    job = slurm.submit(f"ls {site.mounts}/$SLURM_JOB_ID", MOUNTED)
    slurm.until(job, "FAILED")
    assert "pets is not in DIESELFS_SLURM_DATASETS" in slurm.log.read_text()
    eventually(lambda: slurm.node_states() == {"idle"}, "no node is drained")


@pytest.mark.parametrize("broken", ["missing", "failing", "hanging"])
def test_no_job_depends_on_dieselfs(
    slurm: SlurmCluster, configure: Configure, tmp_path: Path, broken: str
) -> None:
    dlcmd = tmp_path / "dlcmd"
    if broken != "missing":
        ends = {"failing": "echo no such Redis >&2; exit 3", "hanging": "exec tail -f /dev/null"}
        dlcmd.write_text(f"#!/bin/sh\n{ends[broken]}\n")
        dlcmd.chmod(0o755)
    configure(DLCMD=dlcmd, LIMIT_S=2)
    began = time.monotonic()
    job = slurm.submit("echo here", COMMENT)
    slurm.until(job, "COMPLETED")
    assert time.monotonic() - began < scaled_by_load(15)
    said = {"missing": "No such file", "failing": "no such Redis", "hanging": "not done within 2 s"}
    eventually(lambda: slurm.log.read_text().count(said[broken]) == 2, "both hooks say it")
    eventually(lambda: slurm.node_states() == {"idle"}, "no node is drained")


def test_what_no_epilog_has_undone_is_swept(
    slurm: SlurmCluster, site: Site, configure: Configure, gate: Path
) -> None:
    configure(MOUNTS=site.mounts, DATASETS="pets")
    job = slurm.submit(waiting_for(gate), f"{COMMENT},mount=yes")
    eventually(lambda: site.declared() == [job], "the job is declared")
    eventually((site.mounts / job / "0.jpg").exists, "its dataset is mounted")
    left = site.mounts / "999998"
    left.mkdir()
    site.dlcmd("mount", "--no-index", "pets", left)
    for name in ("999999", "resnet"):
        site.dlcmd("alloc", "job", "add", name, "pets", "--speed=1MB/s")
    slurm.run(slurm.hooks / "dieselfs_slurm.py", "--sweep")
    assert site.declared() == sorted([job, "resnet"])
    assert [folder.name for folder in site.mounts.iterdir()] == [job]
    assert (site.mounts / job / "0.jpg").exists()
    site.dlcmd("alloc", "job", "rm", "resnet")
    gate.touch()


def test_a_job_waits_for_remote_io(slurm: SlurmCluster, gate: Path) -> None:
    license = f"--licenses=dieselfs_io:{IO_LICENSES * 3 // 4}"
    first = slurm.submit(waiting_for(gate), license)
    slurm.until(first, "RUNNING")
    second = slurm.submit("echo here", license)

    def reason() -> str:
        return slurm.run("squeue", "--noheader", f"--jobs={second}", "--format=%r")

    eventually(lambda: reason() == "Licenses", "the second job waits for a license")
    assert "Total=4000 Used=3000 Free=1000" in slurm.run("scontrol", "show", "licenses")
    small = slurm.submit("echo here", "--licenses=dieselfs_io:114")
    slurm.until(small, "COMPLETED")  # there is room for it
    assert slurm.state(second) == "PENDING"
    gate.touch()
    slurm.until(second, "COMPLETED")
    refused = slurm.run(
        "sh", "-c", f"sbatch --licenses=dieselfs_io:{IO_LICENSES + 1} --wrap=true 2>&1 || true"
    )
    assert "Requested node configuration is not available" in refused or "licens" in refused

"""The jobs of those who read through a mount, from a made-up and from the real /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers import reader_allocation
from dieselfs.allocation.readers.caller_jobs import IDLE_S, CallerJobs
from dieselfs.allocation.readers.job_allocations import JobAllocations
from dieselfs.allocation.readers.process_jobs import job_of_process, started_at
from dieselfs.cache.node.task_folder import VARIABLE
from tests.eventually import PATIENCE_S, eventually

POD = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
OTHER = {"PATH": "/bin", "X": "DIESELFS_JOB=none"}


def put(
    proc: Path, pid: int, groups: str = "0::/\n", started: int = 5, flags: int = 0, **env: str
) -> None:
    """Make a process with a name that is no help to whoever parses it."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", *["1"] * 5, str(flags), *["2"] * 12, str(started), *["3"] * 30]
    (folder / "stat").write_text(f"{pid} (a) R ) 1 2) {' '.join(fields)}")
    (folder / "cgroup").write_text(groups)
    (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in env.items()))


@pytest.mark.parametrize(
    ("groups", "variables", "job"),
    [
        (SLURM, {}, "7"),
        ("4:memory:/slurm/uid_0/job_12/step_batch/task_0\n0::/\n", {}, "12"),
        ("0::/system.slice/slurmd.service\n", {}, None),
        ("0::/user.slice/job_x/job_8x\n", {}, None),
        (f"0::/kubepods/burstable/pod{POD}/0123abcd\n", {}, f"pod{POD}"),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/c\n", {}, f"pod{POD}"),
        ("0::/\n", {"SLURM_JOB_ID": "9"}, "9"),
        (SLURM, {"SLURM_JOB_ID": "9"}, "7"),
        (SLURM, {"DIESELFS_JOB": "resnet"}, "resnet"),
        (f"0::/kubepods/pod{POD}/c\n", {"DIESELFS_JOB": "bert"}, "bert"),
        (SLURM, {"DIESELFS_JOB": "x" * 129}, "7"),
        (SLURM, {"DIESELFS_JOB": "\x1b[31m"}, "7"),
        ("0::/user.slice/session-1.scope\n", {}, None),
        ("", {}, None),
    ],
)
def test_a_process_says_its_job(
    tmp_path: Path, groups: str, variables: dict[str, str], job: str | None
) -> None:
    put(tmp_path, 3, groups, **{**OTHER, **variables})
    assert job_of_process(3, tmp_path) == job


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert job_of_process(3, tmp_path) is None
    assert started_at(3, tmp_path) is None
    put(tmp_path, 3, started=77)
    assert started_at(3, tmp_path) == 77
    put(tmp_path, 3, started=77, flags=0x00200040)
    assert started_at(3, tmp_path) is None  # a thread of the kernel
    (tmp_path / "3" / "stat").write_text("3 (a")
    assert started_at(3, tmp_path) is None


def test_a_thread_of_a_real_process_has_the_job_of_its_process() -> None:
    code = "import threading, sys; threading.Thread(target=sys.stdin.read).start()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        env={**os.environ, "DIESELFS_JOB": "resnet"},
    )
    tasks = Path(f"/proc/{process.pid}/task")
    threads = eventually(lambda: len(found := os.listdir(tasks)) > 1 and found, "a thread")
    assert {job_of_process(int(thread)) for thread in threads} == {"resnet"}
    assert all(started_at(int(thread)) for thread in threads)
    process.communicate(b"")
    assert job_of_process(process.pid) is None


class Node:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from dieselfs.allocation.readers.reader_allocation import AllocationSettings

        monkeypatch.setenv(VARIABLE, str(folder))
        # What is fetched before the first beat is no speed.
        monkeypatch.setattr(reader_allocation, "_FIRST_S", PATIENCE_S)
        self.proc, self.now = folder / "proc", 0.0
        self.proc.mkdir()
        self.directory = FolderDirectory(folder / f"dieselfs-allocations-{os.geteuid()}")
        settings = AllocationSettings("node", "lmdb:///nowhere")
        self.jobs = JobAllocations(settings, DatasetRef("pets", bytes(16)))
        self.callers = CallerJobs(self.jobs, self.proc, lambda: self.now)

    def leases(self) -> list[str]:
        return sorted(lease.job for lease in self.directory.leases())


def test_each_job_of_callers_pays_while_it_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch)
    node.jobs.reads(1000)
    put(node.proc, 3, SLURM)
    put(node.proc, 4, SLURM)
    put(node.proc, 5, flags=0x00200000, DIESELFS_JOB="no")
    put(node.proc, 6)
    payer = node.callers.payer(3)
    assert payer is not None
    assert payer == node.callers.payer(4)
    assert [node.callers.payer(pid) for pid in (0, 5, 6, 99)] == [None] * 4
    budget = payer()
    assert budget is not None
    budget.take(5000)
    eventually(lambda: node.leases() == ["7"], "the job's lease")
    eventually(
        lambda: [lease.speed_bytes_per_s > 0 for lease in node.directory.leases()] == [True],
        "what it fetches as its speed",
    )
    for left, expected in (([3, 4], ["7"]), ([4], ["7"]), ([], [])):
        for pid in {3, 4}.difference(left):
            (node.proc / str(pid) / "stat").unlink(missing_ok=True)
        node.now += IDLE_S + 1
        node.callers.sweep()
        eventually(lambda: node.leases() == expected, "the leases")  # noqa: B023
    node.jobs.close()


def test_an_id_that_is_used_again_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch)
    put(node.proc, 3, DIESELFS_JOB="one")
    one = node.callers.payer(3)
    put(node.proc, 3, DIESELFS_JOB="two")
    assert node.callers.payer(3) == one  # looked up once
    put(node.proc, 3, started=6, DIESELFS_JOB="two")
    assert node.callers.payer(3) != one
    assert threading.active_count() > 1
    node.jobs.close()

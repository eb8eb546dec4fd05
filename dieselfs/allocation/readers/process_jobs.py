"""The job of a process of this node: what its environment and its control groups say.

The kernel tells which thread makes a request. Slurm and Kubernetes put the processes of a job into
control groups that name it. Another user's environment may be read by root alone; control groups,
by everybody. What a process says of itself guards against mistakes, and not against malice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dieselfs.cache.jobs.job_name import SLURM_VARIABLE, is_job_name

JOB_VARIABLE: Final = "DIESELFS_JOB"
PROC: Final = Path("/proc")
_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD of the kernel's `sched.h`."""
_FLAGS, _STARTED = 6, 19
"""The places of the flags and of the start time in `stat`, after the name of the program."""
_SLURM: Final = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
"""`/slurm/uid_0/job_7/step_0`, and `/system.slice/slurmstepd.scope/job_7/step_0/user/task_0`."""
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
"""`/kubepods/burstable/podUID/CONTAINER`, and `/kubepods.slice/kubepods-podUID.slice/…` with
underscores."""


def started_at(pid: int, proc: Path = PROC) -> int | None:
    """Return when a thread was started, in ticks since the boot; None for one of the kernel.

    None too if there is no such thread. 25 µs.
    """
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        return None if int(fields[_FLAGS]) & _KERNEL_THREAD else int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def job_of_process(pid: int, proc: Path = PROC) -> str | None:
    """Return the name of a process's job; None if nothing says it. 75 µs.

    DIESELFS_JOB goes before the job that its control group names, SLURM_JOB_ID, and its pod.
    """
    variables = _variables(proc / str(pid) / "environ")
    groups = _text(proc / str(pid) / "cgroup")
    slurm, pod = _SLURM.search(groups), _POD.search(groups)
    names = (
        variables.get(JOB_VARIABLE),
        slurm and slurm[1],
        variables.get(SLURM_VARIABLE),
        pod and f"pod{pod[1].replace('_', '-')}",
    )
    return next((name for name in names if name and is_job_name(name)), None)


def _variables(environ: Path) -> dict[str, str]:
    items = (item.partition("=") for item in _text(environ).split("\0"))
    return {name: value for name, _, value in items}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""

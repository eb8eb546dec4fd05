"""The name of the job that a process reads for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dieselfs.config import Setting
from dieselfs.errors import UsageError

MAX_JOB_BYTES: Final = 128
SLURM_VARIABLE: Final = "SLURM_JOB_ID"
ANNOTATIONS_VARIABLE: Final = "DIESELFS_POD_ANNOTATIONS"
"""The path of the file that has the annotations of this process's pod; empty for none."""
ANNOTATIONS_PATH: Final = Path("/etc/podinfo/annotations")
"""The path without the variable, if a file is there. Kubernetes' documentation has the same."""
CALLERS: Final = "callers"
"""The name that stands for the jobs of those who read through a mount."""


def names_callers(given: str | None, configured: Setting | None) -> bool:
    """Return whether a mount's misses are paid for by the jobs of its callers."""
    return (configured.value if given is None and configured is not None else given) == CALLERS


def job_name(
    given: str | None, configured: Setting | None, task: str | None, environment: Mapping[str, str]
) -> str:
    """Return the job's name: as given, as configured, Slurm's job id, the pod's, or the task's.

    "" stands for a reader without a name. Raises `UsageError` for a name that cannot be one.
    """
    if names_callers(given, configured):  # what no caller asks for is the mount's own
        given = configured = None
    if given is not None:
        return checked_job(given, "--job")
    if configured is not None:
        return checked_job(configured.value, configured.origin)
    slurm = environment.get(SLURM_VARIABLE, "")
    if slurm and is_job_name(slurm):
        return slurm
    return _pod_job_name(environment) or task or ""


def _pod_job_name(environment: Mapping[str, str]) -> str:
    path = annotations_path(environment)
    if path is None:
        return ""
    from dieselfs.cache.jobs.pod_info import pod_job_name  # most processes are in no pod

    return pod_job_name(path, environment)


def annotations_path(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the pod's annotations; None if this process is in no pod that has some.

    The file that the variable names need not exist yet.
    """
    named = environment.get(ANNOTATIONS_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    return ANNOTATIONS_PATH if ANNOTATIONS_PATH.is_file() else None


def checked_job(name: str, origin: str) -> str:
    """Return the name; raise `UsageError` if it cannot be one."""
    if not is_job_name(name):
        raise UsageError(
            f"{origin}: {name!r} is not a name for a job",
            f"use 1 to {MAX_JOB_BYTES} bytes of printable text",
        )
    return name


def is_job_name(text: str) -> bool:
    """Return whether a job may have this name."""
    is_short = len(text.encode(errors="surrogateescape")) <= MAX_JOB_BYTES
    return bool(text.strip()) and text.isprintable() and is_short

"""Declared jobs: what an administrator says of a job goes before what is measured of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from chunkstore.chunk_format import DatasetRef
from dieselfs.allocation.directory.decisions import NO_ONES_ID, JobEntry, encoded
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.jobs import Job
from dieselfs.cache.jobs.job_name import checked_job
from dieselfs.errors import UsageError

FindDataset = Callable[[str], DatasetRef | None]
"""Returns the dataset of a name; None if there is none."""


def declared(job: Job, dataset: DatasetRef | None) -> JobEntry:
    """Return the declaration of a job, checked. `dataset` None: no store has it yet.

    Raises `UsageError` if the job's name or its dataset's cannot be one.
    """
    checked_job(job.name, f"job {job.name}")
    entry = JobEntry(
        job=job.name,
        dataset=job.dataset,
        dataset_id=NO_ONES_ID if dataset is None else dataset.id.hex(),
        dataset_bytes=job.dataset_bytes,
        speed_bytes_per_s=job.speed_bytes_per_s,
        gpus=job.gpus,
        passes=job.passes,
        submitted_s=job.submitted_s,
        regular=job.regular,
        repeats_items=job.repeats_items,
        order=job.order,
    )
    try:
        encoded(entry)
    except ValueError as error:
        raise UsageError(f"job {job.name} cannot be declared: {error}") from error
    return entry


def declare(
    directory: AllocationDirectory, jobs: Iterable[Job], find: FindDataset
) -> Sequence[JobEntry]:
    """Declare jobs, or declare them again; all are checked before the first one is published.

    Raises `UsageError`, `RegistryUnavailable`, and what `find` raises.
    """
    wanted = list(jobs)
    datasets = {name: find(name) for name in dict.fromkeys(job.dataset for job in wanted)}
    entries = [declared(job, datasets[job.dataset]) for job in wanted]
    for entry in entries:
        directory.put_job(entry)
    return entries


def withdraw(directory: AllocationDirectory, name: str) -> None:
    """Take the declaration of a job back. Raises `UsageError` if there is none.

    Raises `RegistryUnavailable`.
    """
    if all(entry.job != name for entry in directory.jobs()):
        raise UsageError(f"no job {name!r} is declared", "`dlcmd alloc job ls` lists them")
    directory.remove_job(name)


def now_s() -> float:
    """Return the time of a job that is submitted now: whole seconds since 1970."""
    return float(int(time.time()))

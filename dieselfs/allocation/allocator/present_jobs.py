"""The jobs that are present, as policies see them: what was declared, and what readers report.

A job is present while one of its processes has a lease. Its declaration goes before what is
measured. A job that was not declared is taken to read its dataset for ever, as fast as it has been
seen to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dieselfs.allocation.directory.decisions import JobEntry
from dieselfs.allocation.directory.reader_lease import ReaderLease, sized
from dieselfs.allocation.jobs import Job, JobState

FOR_EVER: Final = 1000.0
"""The passes of a job of which nobody has said when it ends."""
_UNSEEN_BYTES_PER_S: Final = 1.0
"""The speed of a job that has read nothing yet, so that nobody's cache is taken for it."""
_FASTER: Final = 1.5
"""A job that waits may be this much faster than it was seen to be; it shows after some seconds."""
UNNAMED: Final = "(without a job)"
"""The name that policies see of all readers without one, which are irregular."""


@dataclass(frozen=True, slots=True)
class PresentJob:
    """A job with readers."""

    name: str
    """As its readers say it; empty for those without one."""
    state: JobState
    dataset_id: str
    used_bytes_per_s: float
    """The remote IO that its readers use."""
    is_seen: bool
    """True if its speed was declared, or it has read something."""
    bound: float
    """The largest share of its time that one of them waits for its budget."""


def present_jobs(entries: Iterable[JobEntry], leases: Iterable[ReaderLease]) -> list[PresentJob]:
    """Return the jobs that have readers, by name.

    A process that fetches for clients may not know how large their dataset is. Then other readers
    of it say it, or declarations; a job of which nobody says it is left out.
    """
    declared, found = {entry.job: entry for entry in entries}, list(leases)
    sizes = {entry.dataset_id: entry.dataset_bytes for entry in declared.values()}
    sizes |= {lease.dataset_id: lease.dataset_bytes for lease in found if lease.dataset_bytes}
    readers: Mapping[str, list[ReaderLease]] = defaultdict(list)
    for lease in found:
        size = lease.dataset_bytes or sizes.get(lease.dataset_id)
        if size and not lease.cache_bytes:
            readers[lease.job].append(sized(lease, size))
    return [_present(declared.get(job), readers[job]) for job in sorted(readers)]


def _present(entry: JobEntry | None, leases: Sequence[ReaderLease]) -> PresentJob:
    """Return a job by its readers; of several datasets the one that it reads most counts."""
    datasets: dict[str, list[ReaderLease]] = defaultdict(list)
    for lease in leases:
        datasets[lease.dataset_id].append(lease)
    if entry is not None and entry.dataset_id in datasets:
        main = datasets[entry.dataset_id]
    else:
        main = max(datasets.values(), key=lambda found: (speed_of(found), found[0].dataset_id))
    job, first = _job(entry, main), main[0]
    epochs = min(max(lease.epoch for lease in main), int(job.passes))
    state = JobState(
        job,
        left_bytes=max(job.total_bytes - epochs * job.dataset_bytes, 1.0),
        is_running=True,
        effective_bytes=sum(lease.effective_bytes for lease in main) / len(main),
        held_bytes=sum(lease.held_bytes for lease in main) / len(main),
    )
    used = sum(lease.used_bytes_per_s for lease in leases)
    is_seen, bound = entry is not None or speed_of(main) > 0, max(lease.bound for lease in leases)
    return PresentJob(first.job, state, first.dataset_id, used, is_seen, bound)


def speed_of(leases: Iterable[ReaderLease]) -> float:
    """Return the ideal rate f* of a job by its readers; 0 if none has read anything."""
    return sum(
        lease.speed_bytes_per_s * (_FASTER if lease.speed_is_bound else 1.0) for lease in leases
    )


def _job(entry: JobEntry | None, leases: Sequence[ReaderLease]) -> Job:
    first = leases[0]
    speed = max(_UNSEEN_BYTES_PER_S, speed_of(leases))
    if entry is None:
        return Job(
            first.job or UNNAMED,
            first.dataset,
            first.dataset_bytes,
            speed,
            gpus=len({lease.host for lease in leases}),
            passes=FOR_EVER,
            regular=bool(first.job),
        )
    return replace(entry.as_job(), dataset=first.dataset, dataset_bytes=first.dataset_bytes)

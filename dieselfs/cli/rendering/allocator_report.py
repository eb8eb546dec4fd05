"""`dlcmd alloc run`: what was allocated at a beat, a line for each job."""

from __future__ import annotations

from datetime import datetime

from dieselfs.allocation.allocator.allocator import Allocated
from dieselfs.allocation.allocator.present_jobs import PresentJob
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.cli.values.sizes import human_size


def print_allocated(output: Output, found: Allocated) -> None:
    """Print the jobs with what they get; with --json one record."""
    if output.json:
        output.record({"jobs": [_record(found, job) for job in found.jobs]})
        return
    time = datetime.now().astimezone().strftime("%H:%M:%S")
    cache, io = human_size(found.total.cache_bytes), human_size(found.total.io_bytes_per_s)
    output.line(f"{time}  {counted(len(found.jobs), 'job')}, {cache} of cache, {io}/s of remote IO")
    for job in found.jobs:
        output.line(f"  {_line(found, job)}")


def _line(found: Allocated, job: PresentJob) -> str:
    size, rate = _shares(found, job)
    quota = "no quota" if size is None else f"{human_size(size)} of cache"
    limit = "set by hand" if rate is None else f"{human_size(rate)}/s"
    ideal = human_size(job.state.job.speed_bytes_per_s)
    return f"{job.state.job.name}: {limit}, {quota} ({job.state.job.dataset}, at most {ideal}/s)"


def _record(found: Allocated, job: PresentJob) -> dict[str, object]:
    size, rate = _shares(found, job)
    return {
        "job": job.name,
        "dataset": job.state.job.dataset,
        "cache_bytes": size,
        "io_bytes_per_s": rate,
        "speed_bytes_per_s": job.state.job.speed_bytes_per_s,
        "held_bytes": int(job.state.held_bytes),
        "effective_bytes": int(job.state.effective_bytes),
        "used_bytes_per_s": job.used_bytes_per_s,
    }


def _shares(found: Allocated, job: PresentJob) -> tuple[float | None, float | None]:
    return found.cache_bytes.get(job.dataset_id), found.io_bytes_per_s.get(job.name)

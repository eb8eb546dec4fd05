"""`dlcmd alloc profile`: a measured job as a row of a job table."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from dieselfs.cli.rendering.output import Output

if TYPE_CHECKING:
    from dieselfs.allocation.administration.profiled import Profile
    from dieselfs.allocation.directory.decisions import JobEntry


def print_profile(output: Output, found: Profile, entry: JobEntry | None) -> None:
    """Print the table with its one row, and beside it what is to be known of the figures.

    GPUs, passes and the time of submission are those of the job's declaration, if there is one.
    """
    row = _row(found, entry)
    if output.json:
        output.record(
            {
                **row,
                "speed_is_lower_bound": found.speed_is_lower_bound,
                "waited_share": found.waited_share,
                "measured_s": found.elapsed_s,
            }
        )
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([row.keys(), map(_cell, row.values())])
    for line in text.getvalue().splitlines():
        output.line(line)
    _note(output, found, entry)


def _row(found: Profile, entry: JobEntry | None) -> dict[str, Any]:
    job = found.job
    row = {
        "job": job.name,
        "dataset": job.dataset,
        "dataset_bytes": job.dataset_bytes,
        "speed_bytes_per_s": round(job.speed_bytes_per_s),
        "gpus": job.gpus if entry is None else entry.gpus,
        "passes": job.passes if entry is None else entry.passes,
        "submitted_s": job.submitted_s if entry is None else entry.submitted_s,
        "regular": True if entry is None else entry.regular,
    }
    return row | ({"repeats_items": True} if job.repeats_items else {})


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _note(output: Output, found: Profile, entry: JobEntry | None) -> None:
    waited = f"reads waited {found.waited_share:.0%} of {found.elapsed_s:.0f} s"
    if not found.sees_all:
        output.note(
            f"{waited}; without a known order, reads that the page cache answers are not seen, so "
            "speed_bytes_per_s is only a lower bound"
        )
    elif found.speed_is_lower_bound:
        output.note(f"{waited}, so speed_bytes_per_s is only a lower bound: the job may be faster")
    else:
        output.note(f"{waited}; the speed is that of the time without waiting")
    if entry is None:
        output.note("gpus and passes are not known of a mount: correct them")

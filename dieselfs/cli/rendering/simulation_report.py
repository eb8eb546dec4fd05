"""`dlcmd alloc simulate`: the outcome of a simulation as tables, a record and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dieselfs.allocation.simulation.events import EventKind
from dieselfs.allocation.simulation.metrics import Outcome
from dieselfs.cli.rendering.line_chart import Line, Panel, draw
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import LocalFileError

MOST_LISTED: Final = 50
"""Jobs that a table for people lists."""
_POINTS: Final = 300
_PERCENTS: Final = (50, 90, 99)


def print_outcome(output: Output, found: Outcome, named: Mapping[str, str]) -> None:
    """Print the jobs and the figures of the cluster, or the record with --json."""
    if output.json:
        output.record({**named, **as_record(found)})
        return
    records = job_records(found)
    if len(records) <= MOST_LISTED:
        output.table(
            ["JOB", "DATASET", "GPUS", "SUBMITTED", "WAITED", "FIRST EPOCH", "ENDED", "JCT"],
            [_row(record) for record in records],
            ("SUBMITTED", "FIRST EPOCH", "GPUS"),
        )
        output.line()
    else:
        output.note(f"{len(records)} jobs; --json lists them")
    figures = as_record(found)
    jct = figures["jct_s"]
    output.table(
        ["MEAN JCT", *(f"{percent} %" for percent in _PERCENTS), "MAKESPAN"],
        [[_minutes(jct[name]) for name in jct] + [_minutes(figures["makespan_s"])]],
    )
    output.line()
    least, tenth, median = found.fairness()
    output.line(
        f"jobs read at {figures['rate_over_ideal']:.0%} of their ideal rates; the store gave "
        f"{human_size(figures['io_bytes_per_s'])}/s on average; "
        f"{figures['effective_over_held']:.0%} of the cached bytes were effective"
    )
    output.line(
        f"fairness, the rate over that with equal parts of everything: least {least:.2f}, "
        f"tenth percentile {tenth:.2f}, median {median:.2f}"
    )


def as_record(found: Outcome) -> dict[str, Any]:
    """Return the outcome as a JSON record."""
    percentiles = zip(_PERCENTS, found.jct_percentiles_s(_PERCENTS), strict=True)
    least, tenth, median = found.fairness()
    return {
        "jct_s": {"mean": found.mean_jct_s()} | {f"p{at}": value for at, value in percentiles},
        "makespan_s": found.makespan_s(),
        "rate_over_ideal": found.rate_over_ideal(),
        "io_bytes_per_s": found.mean_io_rate(),
        "effective_over_held": found.effective_over_held(),
        "fairness": {"min": least, "p10": tenth, "median": median},
        "jobs": job_records(found),
    }


def job_records(found: Outcome) -> list[dict[str, Any]]:
    """Return a record for each job, in the order of the trace."""
    starts = {event.job: event.at_s for event in found.events if event.kind is EventKind.START}
    first = found.first_epochs_s()
    return [
        {
            "job": job.name,
            "dataset": job.dataset,
            "gpus": job.gpus,
            "submitted_s": job.submitted_s,
            "started_s": starts[number],
            "first_epoch_s": first.get(job.name),
            "ended_s": found.ends_s[job.name],
            "jct_s": found.ends_s[job.name] - job.submitted_s,
        }
        for number, job in enumerate(found.jobs)
    ]


def _row(record: Mapping[str, Any]) -> list[str]:
    epoch = record["first_epoch_s"]
    return [
        *(record["job"], record["dataset"], str(record["gpus"])),
        _minutes(record["submitted_s"]),
        _minutes(record["started_s"] - record["submitted_s"]),
        "–" if epoch is None else _minutes(epoch),
        *(_minutes(record["ended_s"]), _minutes(record["jct_s"])),
    ]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min"


def write_plot(file: Path, found: Outcome) -> None:
    """Write rates and cache over time (Figures 9, 11 and 8); raise `LocalFileError`."""
    try:
        file.write_text(draw(panels(found)))
    except OSError as error:
        raise LocalFileError(
            f"cannot write the plot {file}: {error.strerror}", "name another file"
        ) from error


def panels(found: Outcome) -> list[Panel]:
    """Return a panel of rates and one of the cache."""
    rates = [
        _line(found, "ideal", "#57606a", "ideal_rate", 1e6, dashed=True),
        _line(found, "read", "#1f6feb", "rate", 1e6),
        _line(found, "from the store", "#d1242f", "io_rate", 1e6),
    ]
    cache = [
        _line(found, "cached", "#57606a", "held_bytes", 1e9),
        _line(found, "effective", "#1a7f37", "effective_bytes", 1e9),
    ]
    return [
        Panel("Rate of all jobs, MB/s", "hours", rates, (0.0, _most(rates))),
        Panel("Cache, GB", "hours", cache, (0.0, _most(cache))),
    ]


def _line(
    found: Outcome, label: str, colour: str, name: str, unit: float, *, dashed: bool = False
) -> Line:
    points = [
        (at_s / 3600, value / unit)
        for at_s, value in zip(*found.course(name, _POINTS), strict=True)
    ]
    return Line(label, colour, points, dashed)


def _most(lines: list[Line]) -> float:
    return max((y for line in lines for _, y in line.points), default=0.0) or 1.0

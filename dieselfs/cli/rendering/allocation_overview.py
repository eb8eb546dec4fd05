"""`dlcmd alloc show`: jobs with what they may use and what they do, as tables and records."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

from dieselfs.cli.rendering.output import Output, aligned, cut_in_the_middle, picked
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

if TYPE_CHECKING:
    from dieselfs.allocation.administration.overview import JobOverview
    from dieselfs.allocation.directory.decisions import CacheDecision, IoDecision
    from dieselfs.allocation.directory.reader_lease import ReaderLease
    from dieselfs.allocation.explanation import Explanation

    Decision = CacheDecision | IoDecision | None

_NAMES: Final = ("JOB", "DATASET", "NODE")
_LEAST_NAME: Final = 12
"""The characters to which a name is cut at most, before a column is left out."""
UNNAMED: Final = "(no job)"
_IO: Final = ("JOB", "READERS", "SPEED", "ALLOWED", "USED", "WAITED", "BY", "AGE")
_CACHE: Final = ("JOB", "DATASET", "SIZE", "QUOTA", "HELD", "EFFECTIVE", "BY", "AGE")
_READERS: Final = (
    *("NODE", "PID", "DATASET", "EPOCH", "ALLOWED", "USED", "WAITED", "HELD", "EFFECTIVE"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The output at one time."""

    records: Sequence[Mapping[str, Any]]
    """For --json."""
    lines: Sequence[str]
    """For people."""
    notes: Sequence[str] = ()


def rate_text(bytes_per_s: float | None) -> str:
    """Return a rate for people; None is no limit."""
    return "no limit" if bytes_per_s is None else f"{human_size(bytes_per_s)}/s"


def decided_by(decision: Decision) -> str:
    """Say by whom a decision was made."""
    if decision is None:
        return "nothing is decided"
    return "set by hand" if decision.origin == "hand" else "set by the allocator"


def overview_shown(
    output: Output,
    jobs: Sequence[JobOverview],
    why: Mapping[str, Explanation] | None,
) -> Shown:
    """Return all jobs; `why` has explanations by the name of the job, None without --explain."""
    if not jobs:
        return Shown([], [], ["no job reads, is declared or has a decision"])
    first, io = _table(output, _IO, [_io_row(job) for job in jobs], ["AGE", "READERS"])
    with_data = [job for job in jobs if job.dataset]
    cache_rows = [_cache_row(job) for job in with_data]
    second, cache = _table(output, _CACHE, cache_rows, ["AGE", "SIZE", "DATASET"])
    lines = ["remote IO:", *io]
    lines += ["", "cache:", *cache] if cache else []
    for job in jobs if why is not None else ():
        lines += ["", f"{_name(job)}:", *_indented(_wrapped(output, _words(job, why), 2))]
    wanted = (*_IO, *(_CACHE if cache else ()))
    notes = _notes([each for each in wanted if each not in (*first, *second)], (*io, *cache))
    return Shown([_record(job, why) for job in jobs], lines, notes)


def one_job_shown(output: Output, job: JobOverview, why: Mapping[str, Explanation] | None) -> Shown:
    """Return one job with its readers by node."""
    fields = _fields(job)
    width = max(map(len, fields)) + 2
    lines = [f"{f'{name}:':<{width}}{value}" for name, value in fields.items()]
    rows = [_reader_row(each) for each in job.readers]
    shown, readers = _table(output, _READERS, rows, ["EPOCH", "PID", "DATASET"])
    lines += ["", *readers] if readers else ["", "no reader of it is seen"]
    if why is not None:
        lines += ["", *_wrapped(output, _words(job, why))]
    left_out = [each for each in _READERS if each not in shown] if readers else []
    return Shown([_record(job, why)], lines, _notes(left_out, readers))


def _notes(left_out: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Say what does not fit the terminal."""
    if left_out:
        return [f"columns left out: {', '.join(dict.fromkeys(left_out))}; --wide shows all"]
    is_cut = any("…" in line for line in lines)
    return ["names are shortened (…); --wide shows all"] if is_cut else []


def _table(
    output: Output,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    expendable: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return a table as `Output.fitted` does, but cut long names before columns are left out."""
    if not output.is_compact:
        return output.fitted(headings, rows, expendable)
    width = get_terminal_size().columns
    for heading in (each for each in _NAMES if each in headings):
        excess = max((len(line) for line in aligned(headings, rows)), default=0) - width
        if excess > 0:
            at = headings.index(heading)
            longest = max(max(len(row[at]) for row in rows) - excess, _LEAST_NAME)
            rows = [
                [
                    cut_in_the_middle(cell, longest) if column == at else cell
                    for column, cell in enumerate(row)
                ]
                for row in rows
            ]
    return output.fitted(headings, rows, expendable)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _wrapped(output: Output, sentences: Sequence[str], indent: int = 0) -> list[str]:
    """Return sentences as lines of the terminal; elsewhere a sentence is a line."""
    if not output.is_compact:
        return list(sentences)
    width = max(20, get_terminal_size().columns - indent)
    return [line for each in sentences for line in textwrap.wrap(each, width)]


def _words(job: JobOverview, why: Mapping[str, Explanation] | None) -> list[str]:
    from dieselfs.cli.rendering.allocation_reasons import present_sentences

    return present_sentences(job, (why or {}).get(job.name))


def _name(job: JobOverview) -> str:
    return job.name or UNNAMED


def _io_row(job: JobOverview) -> list[str]:
    return [
        *(_name(job), str(len(job.readers)), _speed(job)),
        rate_text(job.allowed_bytes_per_s),
        rate_text(job.used_bytes_per_s) if job.readers else "-",
        f"{job.bound:.0%}" if job.readers else "-",
        *_origin_and_age(job.io),
    ]


def _cache_row(job: JobOverview) -> list[str]:
    return [
        *(_name(job), job.dataset, _size_or_dash(job.dataset_bytes)),
        "none" if job.cache is None else human_size(job.cache.size_bytes),
        human_size(job.held_bytes) if job.readers else "-",
        human_size(job.effective_bytes) if job.readers else "-",
        *_origin_and_age(job.cache),
    ]


def _reader_row(lease: ReaderLease) -> list[str]:
    return [
        *(lease.host, str(lease.pid), lease.dataset, str(lease.epoch)),
        rate_text(_allowed(lease)),
        *(rate_text(lease.used_bytes_per_s), f"{lease.bound:.0%}"),
        *(human_size(lease.held_bytes), human_size(lease.effective_bytes)),
    ]


def _fields(job: JobOverview) -> dict[str, str]:
    size = f" ({human_size(job.dataset_bytes)})" if job.dataset_bytes else ""
    io = rate_text(job.allowed_bytes_per_s)
    quota = "no quota" if job.cache is None else f"quota {human_size(job.cache.size_bytes)}"
    held = f"{human_size(job.held_bytes)} held, {human_size(job.effective_bytes)} effective"
    return {
        "job": _name(job),
        "dataset": f"{job.dataset or '-'}{size}",
        "speed": f"{_speed(job)}{' (declared)' if job.entry is not None else ''}",
        "remote IO": f"{io}, {_decided(job.io)}; {rate_text(job.used_bytes_per_s)} used, "
        f"waited {job.bound:.0%} of the time",
        "cache": f"{quota}, {_decided(job.cache)}; {held}",
    }


def _decided(decision: Decision) -> str:
    if decision is None:
        return decided_by(decision)
    return f"{decided_by(decision)} {_age(decision)} ago"


def _origin_and_age(decision: Decision) -> tuple[str, str]:
    return ("none", "-") if decision is None else (decision.origin, _age(decision))


def _age(decision: CacheDecision | IoDecision) -> str:
    from dieselfs.allocation.administration.overview import age_s

    return human_duration(age_s(decision))


def _speed(job: JobOverview) -> str:
    speed = job.speed
    if speed is None:
        return "-"
    return f"{'≥ ' if speed.is_lower_bound else ''}{rate_text(speed.bytes_per_s)}"


def _size_or_dash(size_bytes: int) -> str:
    return human_size(size_bytes) if size_bytes else "-"


def _allowed(lease: ReaderLease) -> float | None:
    return None if lease.allowed_bytes_per_s < 0 else lease.allowed_bytes_per_s


def _record(job: JobOverview, why: Mapping[str, Explanation] | None) -> dict[str, Any]:
    from dieselfs.allocation.administration.overview import age_s

    io, cache, speed = job.io, job.cache, job.speed
    record = {
        **{"job": job.name, "dataset": job.dataset or None, "dataset_bytes": job.dataset_bytes},
        "is_declared": job.entry is not None,
        "speed_bytes_per_s": None if speed is None else speed.bytes_per_s,
        "speed_is_lower_bound": None if speed is None else speed.is_lower_bound,
        "io_bytes_per_s": None if io is None else io.bytes_per_s,
        "io_origin": "none" if io is None else io.origin,
        "io_age_s": None if io is None else age_s(io),
        **{"used_bytes_per_s": job.used_bytes_per_s, "waited_share": job.bound},
        "starved_share": job.starved,
        "quota_bytes": None if cache is None else cache.size_bytes,
        "cache_origin": "none" if cache is None else cache.origin,
        "cache_age_s": None if cache is None else age_s(cache),
        **{"held_bytes": job.held_bytes, "effective_bytes": job.effective_bytes},
        "readers": [_reader_record(each) for each in job.readers],
    }
    if why is None:
        return record
    explanation = why.get(job.name)
    limit = None if explanation is None else explanation.limited_by
    return record | {"limited_by": limit, "explanation": _words(job, why)}


def _reader_record(lease: ReaderLease) -> dict[str, Any]:
    names = "reader host pid dataset dataset_id epoch used_bytes_per_s held_bytes effective_bytes"
    return {
        **picked(lease, names),
        "allowed_bytes_per_s": _allowed(lease),
        "waited_share": lease.bound,
        "starved_share": lease.starved,
    }

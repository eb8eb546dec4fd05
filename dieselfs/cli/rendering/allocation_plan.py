"""`dlcmd alloc plan`: what jobs get, as a table and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dieselfs.allocation.estimator import uniform_hits
from dieselfs.allocation.explanation import GIB, Explanation
from dieselfs.allocation.jobs import Resources
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

_HEADINGS: Final = ("JOB", "DATASET", "GPUS", "CACHE", "REMOTE IO", "SPEED", "IDEAL", "LIMITED BY")
_LIMITS: Final = {"speed": "its own speed", "io": "remote IO", "gpus": "GPUs"}


def print_plan(
    output: Output, found: Sequence[Explanation], total: Resources, *, in_words: bool
) -> None:
    """Print a line and, in words, the reasons of each job; with --json a record of each."""
    output.listing(
        _HEADINGS,
        [_row(each) for each in found],
        (as_record(each, in_words) for each in found),
        expendable=["GPUS", "IDEAL", "DATASET"],
    )
    if output.json:
        return
    output.line()
    output.line(_summary(found, total))
    for each in found if in_words else ():
        output.line()
        output.line(f"{each.planned.job.name}:")
        for sentence in sentences(each):
            output.line(f"  {sentence}")


def as_record(each: Explanation, in_words: bool) -> dict[str, Any]:
    """Return the record of a job."""
    planned = each.planned
    record = {
        "job": planned.job.name,
        "dataset": planned.job.dataset,
        "gpus": planned.gpus,
        "cache_bytes": planned.cache_bytes,
        "io_bytes_per_s": planned.io_bytes_per_s,
        "speed_bytes_per_s": planned.rate_bytes_per_s,
        "limited_by": each.limited_by,
    }
    if in_words:
        record["first_epoch_bytes_per_s"] = planned.first_rate_bytes_per_s
        record["effective_after_s"] = each.effective_after_s
        record["speed_by_one_more_gib"] = each.rate_by_a_gib
        record["io_spared_by_one_more_gib"] = each.io_spared_by_a_gib
        record["speed_by_one_more_mib_per_s"] = each.rate_by_a_mib_per_s
        record["explanation"] = sentences(each)
    return record


def _row(each: Explanation) -> list[str]:
    planned = each.planned
    cache = f"{human_size(planned.cache_bytes)} of {human_size(planned.job.dataset_bytes)}"
    return [
        *(planned.job.name, planned.job.dataset, f"{planned.gpus:.3g}", cache),
        *(_rate(planned.io_bytes_per_s), _rate(planned.rate_bytes_per_s)),
        *(_rate(planned.job.speed_bytes_per_s), _LIMITS[each.limited_by]),
    ]


def _rate(bytes_per_s: float) -> str:
    return f"{human_size(bytes_per_s)}/s"


def _summary(found: Sequence[Explanation], total: Resources) -> str:
    caches = {each.planned.job.dataset: each.planned.cache_bytes for each in found}
    io = sum(each.planned.io_bytes_per_s for each in found)
    rate = sum(each.planned.rate_bytes_per_s for each in found)
    ideal = sum(each.planned.job.speed_bytes_per_s for each in found)
    return (
        f"in all {human_size(sum(caches.values()))} of {human_size(total.cache_bytes)} cache and "
        f"{_rate(io)} of {_rate(total.io_bytes_per_s)} remote IO; "
        f"the jobs read {_rate(rate)}, and {_rate(ideal)} if none waited"
    )


def sentences(each: Explanation) -> list[str]:
    """Say what limits the job, what would help, who has it, and what is not effective yet."""
    return [*reasons(each), *_delay(each)]


def reasons(each: Explanation) -> list[str]:
    """Say what limits the job, what would help, and who has it."""
    if each.planned.gpus <= 0:
        return ["It waits for GPUs, so it has neither cache nor remote IO."]
    return [
        *(_limit(each), *_known_order(each), _one_more(each)),
        *(*_who_has_io(each), *_who_has_cache(each)),
    ]


def _limit(each: Explanation) -> str:
    planned = each.planned
    hits = f"The cache answers {planned.state.hit_share:.0%} of its reads"
    io = _rate(planned.io_bytes_per_s)
    match each.limited_by:
        case "speed":
            return f"{hits}, and {io} of remote IO bring the rest in time: its own speed limits it."
        case "gpus":
            time_share = planned.gpus / planned.job.gpus
            return f"It has its GPUs for {time_share:.0%} of the time, which limits it. {hits}."
    return f"{hits}, and the rest arrives at {io}: remote IO limits it."


def _known_order(each: Explanation) -> list[str]:
    planned = each.planned
    uniform = uniform_hits(planned.state.held_bytes / planned.job.dataset_bytes)
    if planned.hits is uniform_hits or planned.state.hit_share <= uniform:
        return []
    return [
        "The cache knows what is read next and evicts by it. "
        f"Without that it would answer {uniform:.0%}."
    ]


def _one_more(each: Explanation) -> str:
    if each.limited_by == "io":
        return (
            f"One more GiB of cache would bring it {_rate(each.rate_by_a_gib)}, "
            f"one more MiB/s of remote IO {_rate(each.rate_by_a_mib_per_s)}."
        )
    if each.io_spared_by_a_gib <= 0:
        return "More cache or remote IO would bring nothing."
    return (
        "More cache or remote IO would not make it faster. One more GiB of cache would spare "
        f"{_rate(each.io_spared_by_a_gib)} of remote IO for others."
    )


def _who_has_io(each: Explanation) -> list[str]:
    if each.limited_by != "io":
        return []
    most = _rate(each.most_io_bytes_per_s)
    jobs = counted(each.jobs_with_most_io, "job")
    if each.planned.io_bytes_per_s >= each.most_io_bytes_per_s * (1 - 1e-6):
        others = f"; {jobs} in all got {most}" if each.jobs_with_most_io > 1 else ""
        return [f"No job has more remote IO{others}."]
    return [f"The most remote IO is {most}, of {jobs}."]


def _who_has_cache(each: Explanation) -> list[str]:
    if each.planned.cache_bytes >= each.planned.job.dataset_bytes:
        return []
    if each.reads <= 1:
        return ["It ends before it reads a byte twice, so cached bytes would hardly be hits."]
    if not each.holders:
        return []
    named = ", ".join(
        f"{holder.dataset} ({human_size(holder.cache_bytes)}, {_rate(holder.efficiency * GIB)})"
        for holder in each.holders
    )
    more = f" and {each.other_holders} more" if each.other_holders else ""
    return [
        f"A GiB of its dataset spares {_rate(each.efficiency * GIB)} of remote IO.",
        f"Cache is with {named}{more}{_reason(each)}.",
    ]


def _reason(each: Explanation) -> str:
    """Say why the holder that comes last has cache instead; those before it spare more."""
    last = each.holders[0]
    if last.efficiency > each.efficiency * (1 + 1e-9):
        return ", where a GiB spares more"
    if last.efficiency > each.efficiency * (1 - 1e-9):
        return ", where a GiB spares at least as much"
    if last.reads > each.reads:
        return ": some spare less at a time, but are read more often"
    return ", as the policy divides it"


def _delay(each: Explanation) -> list[str]:
    if each.planned.gpus <= 0 or each.planned.cache_bytes <= 0 or each.effective_after_s is None:
        return []
    return [
        f"Its cache is not effective until its first epoch ends, "
        f"after {human_duration(each.effective_after_s)} "
        f"at {_rate(each.planned.first_rate_bytes_per_s)}."
    ]

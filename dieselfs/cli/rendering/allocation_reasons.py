"""`dlcmd alloc show --explain`: why a job has what it has now, and what will change, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dieselfs.cli.rendering.allocation_plan import reasons
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

if TYPE_CHECKING:
    from dieselfs.allocation.administration.overview import JobOverview
    from dieselfs.allocation.explanation import Explanation

_STARVED: Final = 0.1
"""The share of its time for which a reader waits for the store, from which it is said."""


def present_sentences(job: JobOverview, why: Explanation | None) -> list[str]:
    """Say what limits the job, what would help, who has it, and what is not effective yet.

    `why` None: it has no reader, so nothing binds.
    """
    if why is None:
        return ["No reader of it is seen, so nothing limits it now."]
    return [*_limits(job, why), *_speed(job), *_starved(job), *_not_yet(job, why)]


def _limits(job: JobOverview, why: Explanation) -> list[str]:
    if job.present is not None and not job.present.is_seen:
        return ["It has read nothing yet, so its speed is not known, and nothing limits it."]
    unlimited = "Its remote IO has no limit, as nothing is decided on it."
    return [*([unlimited] if job.io is None else []), *reasons(why)]


def _speed(job: JobOverview) -> list[str]:
    speed = job.speed
    if job.entry is not None or speed is None or not speed.is_lower_bound:
        return []
    return [
        f"Its ideal rate is not known: its reads waited all the time, at "
        f"{human_size(speed.bytes_per_s)}/s and less. It is taken to be half as fast again."
    ]


def _starved(job: JobOverview) -> list[str]:
    if job.starved < _STARVED:
        return []
    return [
        f"Its reads waited {job.starved:.0%} of the last seconds though its budget did not bind: "
        "the store, or a job that reads one file at a time, is the reason."
    ]


def _not_yet(job: JobOverview, why: Explanation) -> list[str]:
    """Say what of the cache is not effective yet, and when it will be."""
    found = []
    waiting = job.held_bytes - job.effective_bytes
    if waiting > 0:
        found.append(
            f"Of {human_size(job.held_bytes)} cached, {human_size(waiting)} are not effective "
            f"until its next epoch, which begins {_when(job, why)}."
        )
    if job.cache is None:
        return found
    quota = min(job.cache.size_bytes, job.dataset_bytes)
    if quota > job.held_bytes:
        found.append(
            f"Of its quota {human_size(quota - job.held_bytes)} are not cached yet: they are as it "
            "reads, and effective an epoch later."
        )
    elif job.cache.size_bytes < job.held_bytes:
        more = human_size(job.held_bytes - job.cache.size_bytes)
        found.append(f"{more} above its quota are evicted within 10 s.")
    return found


def _when(job: JobOverview, why: Explanation) -> str:
    left, rate = job.epoch_left_bytes, why.planned.rate_bytes_per_s
    if left is None or rate <= 0:
        return "when it has read its dataset once"
    return f"in about {human_duration(left / rate)} at this rate"

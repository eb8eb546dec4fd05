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
    if job.io is not None:
        return reasons(why)
    unlimited = "Its remote IO has no limit, as nothing is decided on it."
    if _is_bound(job):
        return [f"{unlimited} Its reads wait all the time, so the store limits it."]
    return [unlimited, *reasons(why)]


def _is_bound(job: JobOverview) -> bool:
    """Return True if of its ideal rate only a lower bound is known."""
    return job.entry is None and job.speed is not None and job.speed.is_lower_bound


def _speed(job: JobOverview) -> list[str]:
    if not _is_bound(job) or job.speed is None:
        return []
    rate = human_size(job.speed.bytes_per_s)
    return [
        f"Its ideal rate is not known: it has read {rate}/s, and its reads waited all the time. "
        "An allocator takes it that the job could be half as fast again."
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
    region = max((each.region_bytes for each in job.main_readers), default=0)
    if region and quota - job.held_bytes >= region:
        found.append(
            f"{human_size(quota - job.held_bytes)} more fit its quota. What it reads is cached "
            "until that is full, and effective an epoch later."
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

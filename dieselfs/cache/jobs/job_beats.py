"""The thread that publishes and watches job records: once in 2 s, and no reader waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from chunkstore.ssd.tier_policies import TierPolicies
from dieselfs.cache.jobs.beats import Beat, Beats
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.job_watcher import JobWatcher
from dieselfs.cache.jobs.registries import job_registry

BEAT_S: Final = 2.0


class JobBeats(Beats[JobRegistry]):
    """The thread of job records."""

    def __init__(
        self,
        make_registry: Callable[[], JobRegistry],
        parts: Sequence[Beat[JobRegistry]],
        beat_s: float = BEAT_S,
    ) -> None:
        super().__init__(make_registry, parts, beat_s, name="jobs", what="job records")


def watch_jobs(index_url: str, policies: TierPolicies) -> JobBeats:
    """Tell the tier's cache policy what all readers publish, as soon as the tier has a policy.

    The caller closes the result. Without a policy there is no thread and no request.
    """
    watcher = JobWatcher(policies.publish, lambda: policies.runner is not None)
    beats = JobBeats(partial(job_registry, index_url), [watcher])
    policies.when_policy(beats.start)
    return beats

"""Remote IO as it is published: what a policy gives, and what else there is to give.

A policy divides max-min over the demands, to the byte. Published are a little more: what nobody
needs, and what a job with a share leaves unused for a while.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dieselfs.allocation.allocator.present_jobs import PresentJob
from dieselfs.allocation.policies.fair_share import fair_shares

LENT_AFTER_S: Final = 30.0
"""The time after which what a job does not use is lent out."""
_UNUSED: Final = 0.5
"""A job uses its remote IO if it uses this share of it."""
_BOUND: Final = 0.05
_KEPT: Final = 1.25
"""The multiple of its use that a job keeps while the rest is lent out."""
LEAST_BYTES_PER_S: Final = 1 << 20


class LentOut:
    """The times since which jobs have not used their remote IO."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}

    def divided(
        self,
        jobs: Sequence[PresentJob],
        shares: Mapping[str, float],
        total_bytes_per_s: float,
        allowed: Mapping[str, float],
        now: float,
    ) -> dict[str, float]:
        """Return the remote IO of each job by its name.

        `shares` are the policy's by the names that it sees, `allowed` what jobs have now. The sum
        is `total_bytes_per_s`, if there are jobs.
        """
        for job in jobs:
            self._note(job, allowed.get(job.name, math.inf), now)
        self._used_at = {job.name: self._used_at[job.name] for job in jobs}
        given = [shares.get(job.state.job.name, 0.0) for job in jobs]
        kept = [
            min(share, self._kept(job, share, now)) for job, share in zip(jobs, given, strict=True)
        ]
        wanted = [
            max(0.0, job.state.io_demand - share) if share == of_policy else 0.0
            for job, share, of_policy in zip(jobs, kept, given, strict=True)
        ]
        more = fair_shares(wanted, max(0.0, total_bytes_per_s - math.fsum(kept)))
        found = [share + extra for share, extra in zip(kept, more, strict=True)]
        rest = max(0.0, total_bytes_per_s - math.fsum(found)) / max(1, len(jobs))
        return {job.name: share + rest for job, share in zip(jobs, found, strict=True)}

    def _note(self, job: PresentJob, allowed_bytes_per_s: float, now: float) -> None:
        is_used = job.bound > _BOUND or job.used_bytes_per_s > _UNUSED * allowed_bytes_per_s
        if is_used or job.name not in self._used_at:
            self._used_at[job.name] = now

    def _kept(self, job: PresentJob, share: float, now: float) -> float:
        if now - self._used_at[job.name] < LENT_AFTER_S:
            return share
        return max(LEAST_BYTES_PER_S, _KEPT * job.used_bytes_per_s)

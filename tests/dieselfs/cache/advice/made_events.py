"""Events of a tier, as a trace recorder sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_events import PolicyRequest


def request(
    key: int, job: str = "job", bucket: str = "pets", *, hit: bool = False, length: int = 1 << 20
) -> PolicyRequest:
    return PolicyRequest(job, 3, "pets", Bucket(bucket), key, length, hit)


def specification(
    job: str = "job", keys: Sequence[int] | None = None, position: int = 0, plan: str = "plan"
) -> JobSpecification:
    planned = None
    if keys is not None:
        planned = PlannedReads(plan, np.array(keys, np.uint32), position, 2.5)
    return JobSpecification(
        *(job, "pets", (Bucket("pets"), Bucket("x")), frozenset([Bucket("x")]), 30.0),
        reader="node1",
        plan=planned,
        repeats=True,
        is_reading=True,
    )

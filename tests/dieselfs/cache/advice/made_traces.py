"""Small traces for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chunkstore.ssd.policies.segment_buckets import Bucket
from dieselfs.cache.advice.request_trace import Publication, RequestTrace


def made(
    keys: Sequence[int],
    lengths: Sequence[int] | None = None,
    jobs: Sequence[str] = (),
    publications: Sequence[Publication] = (),
) -> RequestTrace:
    """A trace of one request a second, by one job unless `jobs` has one for each request."""
    names = sorted(set(jobs)) or ["job"]
    return RequestTrace(
        times_s=np.arange(len(keys), dtype=np.float64),
        keys=np.array(keys, np.uint64),
        lengths=np.array([1] * len(keys) if lengths is None else lengths, np.int64),
        jobs=np.array([names.index(job) for job in jobs] or [0] * len(keys)),
        buckets=np.zeros(len(keys), np.int64),
        job_names=names,
        bucket_names=[Bucket("d")],
        publications=publications,
    )

"""The traces of several mounts or cache nodes as one trace for the replay, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.segment_buckets import Bucket
from dieselfs.cache.advice.request_trace import RequestTrace
from dieselfs.cache.advice.trace_file import HIT, TraceFile


def merged(files: Sequence[TraceFile]) -> RequestTrace:
    """Return the requests and publications of all files, in the order of time.

    Times are seconds since the earliest start. A segment whose length was not known to all of its
    readers has the greatest one in all its requests.
    """
    began_s = min((each.started_s for each in files), default=0.0)
    asked = [each.records[each.records["outcome"] <= HIT] for each in files]
    times = [
        each.started_s - began_s + part["time_ms"] / 1000
        for each, part in zip(files, asked, strict=True)
    ]
    jobs, job_names = _numbers(files, asked, "job", "jobs")
    buckets, bucket_names = _numbers(files, asked, "bucket", "buckets")
    order = np.argsort(np.concatenate([np.zeros(0), *times]), kind="stable")
    keys = np.concatenate([np.zeros(0, np.uint64), *(part["key"] for part in asked)])[order]
    lengths = np.concatenate([np.zeros(0, np.int64), *(part["length"] for part in asked)])[order]
    publications = [
        replace(told, time_s=told.time_s + each.started_s - began_s)
        for each in files
        for told in each.publications
    ]
    return RequestTrace(
        times_s=np.concatenate([np.zeros(0), *times])[order],
        keys=keys,
        lengths=_of_segments(keys, lengths),
        jobs=jobs[order],
        buckets=buckets[order],
        job_names=job_names,
        bucket_names=[Bucket(name) for name in bucket_names],
        publications=sorted(publications, key=lambda told: told.time_s),
    )


def _numbers(
    files: Sequence[TraceFile], asked: Sequence[npt.NDArray[np.void]], column: str, table: str
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return a column of all files with common numbers, and the names by these numbers."""
    numbers: dict[str, int] = {}
    found = [np.zeros(0, np.int64)]
    for each, part in zip(files, asked, strict=True):
        common = [numbers.setdefault(name, len(numbers)) for name in each.names.get(table, [""])]
        found.append(np.array(common, np.int64)[part[column]])
    return np.concatenate(found), list(numbers)


def _of_segments(
    keys: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    distinct, of_request = np.unique(keys, return_inverse=True)
    longest = np.zeros(len(distinct), np.int64)
    np.maximum.at(longest, of_request, lengths)
    return longest[of_request]

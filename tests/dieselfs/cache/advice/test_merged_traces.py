"""Traces of several nodes as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_events import Observed, PolicyDecision
from dieselfs.cache.advice.merged_traces import merged
from dieselfs.cache.advice.trace_file import TraceEncoder, TraceFile, head, read_trace
from tests.dieselfs.cache.advice.made_events import request, specification


def recorded(path: Path, started_s: int, events: Sequence[tuple[float, Observed]]) -> TraceFile:
    path.write_bytes(head(started_s * 10**9) + TraceEncoder().encode(events))
    return read_trace(path)


def test_two_nodes(tmp_path: Path) -> None:
    first = recorded(
        tmp_path / "1",
        1000,
        [
            (0.0, request(1, "a", "x", length=4)),
            (5.0, request(2, "b", "y")),
            (7.0, specification()),
        ],
    )
    decision = PolicyDecision(Bucket("x"), 9, True)
    second = recorded(
        tmp_path / "2",
        1002,
        [(0.0, specification("b")), (1.0, request(1, "b", "y", length=9)), (1.0, decision)],
    )
    found = merged([second, first])
    assert found.times_s.tolist() == [0.0, 3.0, 5.0]
    assert found.keys.tolist() == [1, 1, 2]
    assert found.lengths.tolist() == [9, 9, 1 << 20]  # a segment has one length
    assert [found.job_names[at] for at in found.jobs] == ["a", "b", "b"]
    assert [found.bucket_names[at] for at in found.buckets] == ["x", "y", "y"]
    assert [(each.time_s, each.specification.job) for each in found.publications] == [
        (2.0, "b"),
        (7.0, "job"),
    ]


def test_no_requests(tmp_path: Path) -> None:
    found = merged([recorded(tmp_path / "1", 1000, [])])
    assert (len(found.keys), found.requested_bytes) == (0, 0)

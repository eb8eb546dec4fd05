"""The format of a trace: golden bytes, what is read back, and files that are none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_events import Observed, PolicyDecision
from dieselfs.cache.advice.trace_file import TraceEncoder, head, read_trace
from dieselfs.errors import LocalFileError
from tests.dieselfs.cache.advice.made_events import request, specification

STARTED_NS = 1_700_000_000_000_000_000
GOLDEN = (
    "4446535452414345010018000000000000002a36fe9c9717"
    "010000003c0000006cb48db7"
    "7b226275636b657473223a205b2270657473225d2c20226461746173657473223a205b2270657473225d2c20"
    "226a6f6273223a205b226a6f62225d7d"
    "0500000030000000214c4478"
    "000103000100010000000000000010000700000000000000"
    "0200000000000100e803000000000000ffffffffffffffff"
)


def written(path: Path, events: Sequence[tuple[float, Observed]]) -> Path:
    path.write_bytes(head(STARTED_NS) + TraceEncoder().encode(events))
    return path


def test_golden_bytes(tmp_path: Path) -> None:
    """If this changes, readers of former traces need another version."""
    decision = PolicyDecision(Bucket("pets"), (1 << 64) - 1, True)
    path = written(tmp_path / "trace", [(0.0, request(7)), (1.0, decision)])
    assert path.read_bytes().hex() == GOLDEN


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path / "trace",
        [
            (0.0, specification(keys=[5, 6, 7])),
            (0.5, request((1 << 64) - 1, "job", "pets:cat", hit=True)),
            (1.0, specification(keys=[5, 6, 7], position=1)),  # too soon after the last one
            (2.0, request(6, "\udcff", "pets:dog")),
            (9.0, specification(keys=[5, 6, 7], position=2)),
            (9.5, specification("other")),
        ],
    )
    found = read_trace(path)
    assert (found.started_s, found.is_cut) == (1.7e9, False)
    assert found.records["key"].tolist() == [(1 << 64) - 1, 6]
    assert found.records["time_ms"].tolist() == [500, 2000]
    assert found.records["outcome"].tolist() == [1, 0]
    assert [found.names["jobs"][at] for at in found.records["job"]] == ["job", "\udcff"]
    assert [found.names["buckets"][at] for at in found.records["bucket"]] == [
        "pets:cat",
        "pets:dog",
    ]
    first, second, third = found.publications
    assert (first.time_s, second.time_s, third.time_s) == (0.0, 9.0, 9.5)
    assert third.specification == specification("other")
    plan = second.specification.plan
    assert plan is not None
    assert (plan.id, plan.keys.tolist(), plan.position, plan.keys_per_s) == (
        "plan",
        [5, 6, 7],
        2,
        2.5,
    )
    assert replace(second.specification, plan=None) == specification()


def test_an_order_is_written_once(tmp_path: Path) -> None:
    encoder = TraceEncoder()
    order = list(range(1000))
    first = encoder.encode([(0.0, specification(keys=order))])
    assert 4000 < len(first) < 4500
    for second in range(1, 100):
        later = encoder.encode([(10.0 * second, specification(keys=order, position=second))])
        assert len(later) == 36


def test_more_names_than_there_are_numbers(tmp_path: Path) -> None:
    events = [(0.0, request(at, bucket=f"pets:{at}")) for at in range(70_000)]
    found = read_trace(written(tmp_path / "trace", events))
    assert len(found.names["buckets"]) == 1 << 16
    assert found.records["bucket"][-1] == 0
    assert found.records["bucket"][65_534] == 65_535


@pytest.mark.parametrize("lost", [1, 30, 60])
def test_a_file_that_was_cut_off(tmp_path: Path, lost: int) -> None:
    encoder = TraceEncoder()
    whole = head(STARTED_NS) + encoder.encode([(0.0, request(1))])
    path = tmp_path / "trace"
    path.write_bytes((whole + encoder.encode([(1.0, request(2)), (1.0, request(3))]))[:-lost])
    found = read_trace(path)
    assert found.is_cut == (lost != 60)
    assert found.records["key"].tolist() == [1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a trace"),
        (b"\x89PNG" * 10, "is not a trace"),
        (head(0)[:12], "damaged: it ends within its head"),
        (head(0).replace(b"\x01\x00", b"\x02\x00", 1), "version 2, and this release reads 1"),
        (head(0) + bytes(24), "damaged: a block of kind 0 at byte 24"),
    ],
)
def test_no_trace(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(LocalFileError, match=said):
        read_trace(path)
    with pytest.raises(LocalFileError, match="No such file"):
        read_trace(tmp_path / "absent")


def test_each_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "trace", [(0.0, specification(keys=[1, 2])), (0.0, request(7))])
    data = path.read_bytes()
    unnoticed = []
    for at in range(24, len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x55
        path.write_bytes(broken)
        with suppress(LocalFileError):
            if not read_trace(path).is_cut:  # as by a length that is too large
                unnoticed.append(at)
    assert not any(data[at] for at in unnoticed)  # only the filler of a block's head

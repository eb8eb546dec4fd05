"""The counts of cache policies: bounded rows, in a process and in the index that a node shares."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from chunkstore.ssd import segment_index
from chunkstore.ssd.policy_counts import (
    REST,
    CountedRow,
    CountedRows,
    DecidedRow,
    PolicyCounts,
    total_of,
)
from chunkstore.ssd.policy_statistics import policy_statistics
from chunkstore.ssd.segment_index import SegmentIndex


def test_rows_beyond_the_limit_are_counted_together() -> None:
    rows = CountedRows(limit=2)
    for number in range(5):
        rows.of("d", f"b{number}", "").hit_bytes += 1
        rows.of("d", f"b{number}", "").miss_bytes += number
    assert set(rows.all()) == {CountedRow("d", "b0"), CountedRow("d", "b1"), REST}
    assert total_of(rows.all()) == PolicyCounts(hit_bytes=5, miss_bytes=10)
    assert rows.take() == rows.all()
    rows.of("d", "b0", "").filled_bytes += 3
    assert rows.take() == {CountedRow("d", "b0"): PolicyCounts(filled_bytes=3)}
    assert rows.take() == {}
    assert rows.all()[CountedRow("d", "b0")].absorbed_bytes == -2


def test_a_row_to_which_nothing_was_added_is_not_shown() -> None:
    rows = CountedRows()
    rows.of("d", "b", "j")
    assert rows.all() == rows.take() == {}


def test_statistics_stay_small() -> None:
    """`dlcmd stats` reads 64 KiB of stats.json, which has two policies."""
    rows = {
        CountedRow("d", f"{number}" + "b" * 5000, "j" * 255): PolicyCounts(
            hit_bytes=10**15 + number
        )
        for number in range(50)
    }
    shown = policy_statistics("next-use", rows)
    assert shown.rows[0].bucket.startswith("49b")
    assert shown.counts["absorbed_bytes"] == total_of(rows).hit_bytes
    assert len(json.dumps(asdict(shown), indent=2)) < 25_000


def test_processes_add_to_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "_MAX_DECISIONS", 2)
    row = DecidedRow("acting", "future", CountedRow("ü", "b" * 1000, "j"))
    shadow = row._replace(role="shadow")
    with (
        closing(SegmentIndex(tmp_path / "index", tmp_path / "ssd")) as one,
        closing(SegmentIndex(tmp_path / "index", tmp_path / "ssd")) as other,
    ):
        for index in (one, other):
            index.add_decisions(
                {row: PolicyCounts(1, 2), shadow: PolicyCounts(written_bytes=2**40)}
            )
        assert one.decisions() == {
            row: PolicyCounts(2, 4),
            shadow: PolicyCounts(written_bytes=2**41),
        }
        for bucket in ("x", "y"):
            one.add_decisions({row._replace(row=CountedRow("d", bucket)): PolicyCounts(1)})
        assert other.decisions()[row._replace(row=REST)] == PolicyCounts(2)
        one.fill(b"tables", [])
        assert other.decisions() == {}

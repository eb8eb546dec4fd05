"""The benchmark of allocations prints the lines that the issue's reader parses."""

from __future__ import annotations

import json

import pytest

from benchmarks.bench_silod import Change, table_6


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_table_6_has_a_line_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    table_6(["quiver"], Change(None, None), beat_s=600)
    table, figure = lines(capsys)
    assert (table["question"], table["system"]) == ("table 6", "quiver")
    assert table["paper"] == {
        "jct_min": [3609, 3592],
        "makespan_min": [3933, 3915],
        "first_epoch_min": 460,
    }
    assert len(table["ends_min"]) == 5  # type: ignore[arg-type]
    assert figure["question"] == "figure 9"
    # The first epoch is bound by remote IO: 200 MB/s for all systems.
    assert figure["mb_per_s"][0] == 200  # type: ignore[index]


def test_another_set_up_has_no_figures_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    table_6(["silod"], Change("100GB/s", "0"), beat_s=600)
    table = lines(capsys)[0]
    assert "paper" not in table
    assert table["makespan_min"] == pytest.approx(3452, rel=0.001)

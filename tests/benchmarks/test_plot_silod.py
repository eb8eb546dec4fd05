"""The plots of allocations have a line for each system, and leave out what is not there."""

from __future__ import annotations

from benchmarks.plot_silod import figure_9, figure_12, figure_13


def test_a_line_for_each_system() -> None:
    lines = [
        {"question": "figure 9", "system": system, "minutes": [0, 60], "mb_per_s": [200, 328]}
        for system in ("silod", "alluxio")
    ]
    [panel] = figure_9(lines)
    assert [line.label for line in panel.lines] == ["silod", "alluxio"]
    assert panel.lines[0].points == [(0, 200), (1, 328)]
    assert panel.y_range == (0, 328)
    assert figure_13(lines) == []


def test_orders_are_side_by_side() -> None:
    lines = [
        {
            "question": "400 GPUs",
            "system": "quiver",
            "order": order,
            "jct_over_silod": ratio,
            "makespan_over_silod": 1.0,
        }
        for order, ratio in (("fifo", 1.2), ("sjf", 1.5))
    ]
    jct, makespan = figure_12(lines)
    assert jct.lines[0].points == [(1, 1.2), (2, 1.5)]
    assert makespan.x_label == "1: fifo, 2: sjf"

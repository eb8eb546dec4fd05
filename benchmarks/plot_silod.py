"""Draws SiloD's Figures 9, 11, 12 and 13 with our simulator, from the lines of `bench_silod`.

    python -m benchmarks.bench_silod > benchmarks/results/silod.jsonl
    python -m benchmarks.plot_silod [benchmarks/results/silod.jsonl [docs/images]]

Figure 9: what all jobs read on eight GPUs. Figure 11: the same on 96, beside the ideal rate. Figure
12: JCT and makespan on 400, by order. Figure 13: the fairness there under max-min, over time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY
from dieselfs.cli.rendering.line_chart import Line, Panel, draw

_COLOURS = {
    "silod": "#1f6feb",
    "silod without IO control": "#8db9f7",
    "quiver": "#1a7f37",
    "coordl": "#bf8700",
    "alluxio": "#d1242f",
}
Record = Mapping[str, Any]


def figure_9(lines: Sequence[Record]) -> list[Panel]:
    """Return the rate over time of each system on eight GPUs."""
    rates = [_over_hours(line, "mb_per_s", line["system"]) for line in _of(lines, "figure 9")]
    return [_panel("Rate of all jobs on 8 GPUs, MB/s", "hours", rates)] if rates else []


def figure_11(lines: Sequence[Record]) -> list[Panel]:
    """Return a panel for each system on 96 GPUs."""
    return [
        _panel(
            f"{line['system']}, 96 GPUs, MB/s",
            "hours",
            [
                _over_hours(line, "ideal_mb_per_s", "ideal rate", "#57606a"),
                _over_hours(line, "mb_per_s", "rate", "#1f6feb"),
                _over_hours(line, "io_mb_per_s", "from the store", "#d1242f"),
            ],
        )
        for line in _of(lines, "figure 11")
        if line["system"] in _COLOURS
    ]


def figure_12(lines: Sequence[Record]) -> list[Panel]:
    """Return JCT and makespan over SiloD's, with the orders side by side."""
    found = _of(lines, "400 GPUs")
    orders = list(dict.fromkeys(line["order"] for line in found))
    x_label = ", ".join(f"{number}: {order}" for number, order in enumerate(orders, 1))
    panels = []
    for measure, title in (("jct", "Mean JCT over SiloD's"), ("makespan", "Makespan over SiloD's")):
        systems = dict.fromkeys(line["system"] for line in found)
        rows = [
            Line(
                system,
                _COLOURS[system],
                [
                    (orders.index(line["order"]) + 1.0, line[f"{measure}_over_silod"])
                    for line in found
                    if line["system"] == system
                ],
            )
            for system in systems
        ]
        if found:
            panels.append(_panel(title, x_label, rows))
    return panels


def figure_13(lines: Sequence[Record]) -> list[Panel]:
    """Return the least fairness ratio and the median over time."""
    found = _of(lines, "figure 13")
    return [
        _panel(
            title,
            "days",
            [
                Line(
                    line["system"],
                    _COLOURS[line["system"]],
                    list(zip(line["course"]["days"], line["course"][measure], strict=True)),
                )
                for line in found
            ],
        )
        for measure, title in (("min", "Least fairness ratio"), ("median", "Median ratio"))
        if found
    ]


FIGURES = {
    "silod-throughput.svg": figure_9,
    "silod-cluster-throughput.svg": figure_11,
    "silod-orders.svg": figure_12,
    "silod-fairness.svg": figure_13,
}


def _of(lines: Sequence[Record], question: str) -> list[Record]:
    return [line for line in lines if line["question"] == question]


def _over_hours(line: Record, name: str, label: str, colour: str | None = None) -> Line:
    points = [
        (minute / 60, float(rate)) for minute, rate in zip(line["minutes"], line[name], strict=True)
    ]
    return Line(label, colour or _COLOURS[label], points)


def _panel(title: str, x_label: str, rows: Sequence[Line]) -> Panel:
    most = max((y for row in rows for _, y in row.points), default=0.0)
    return Panel(title, x_label, rows, (0.0, most or 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = REPOSITORY / "benchmarks/results/silod.jsonl"
    parser.add_argument("source", type=Path, nargs="?", default=source)
    parser.add_argument("folder", type=Path, nargs="?", default=REPOSITORY / "docs/images")
    options = parser.parse_args()
    try:
        text = options.source.read_text()
    except OSError as error:
        parser.error(f"cannot read {options.source}: {error.strerror}")
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for name, figure in FIGURES.items():
        panels = figure(lines)
        if panels:
            (options.folder / name).write_text(draw(panels))
        else:
            print(f"{name}: {options.source} has no lines for it")


if __name__ == "__main__":
    main()

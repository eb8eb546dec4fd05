"""Draws accuracy by epoch from the lines of `bench_accuracy`, as DIESEL's Fig. 13 does: one panel a
packing.

nice python -m benchmarks.bench_accuracy >> benchmarks/results/accuracy.jsonl    # the last line for
an order counts python -m benchmarks.plot_accuracy [benchmarks/results/accuracy.jsonl
[docs/images/accuracy.svg]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.bench_accuracy import AGAIN, DIRECTORY, FULL, QUESTION
from benchmarks.harness import REPOSITORY
from dieselfs.cli.rendering.line_chart import Line, Panel, draw

_REFERENCES: Final = {FULL: "#1a7f37", AGAIN: "#8fd19e", DIRECTORY: "#d1242f"}
_GROUPS: Final = ("#0a3069", "#1f6feb", "#8db9f7", "#e8a33d", "#8250df")
_PACKINGS: Final = {"scatter": "Packed in the default order", "path": "Packed by path"}


def chart(lines: list[dict[str, Any]]) -> str:
    newest = {line["order"]: line for line in lines if line["question"] == QUESTION}
    return draw([_panel(newest, packing, title) for packing, title in _PACKINGS.items()])


def _panel(newest: dict[str, dict[str, Any]], packing: str, title: str) -> Panel:
    lines = []
    colours = iter(_GROUPS)
    for line in newest.values():
        if line["packing"] == packing:
            # Both panels' lines are one entry of the legend.
            label = f"chunk-wise, group {line['group_size']} of {line['chunks']}"
            lines.append(Line(label, next(colours), _points(line)))
    for name, colour in _REFERENCES.items():
        if name in newest:
            lines.append(Line(name, colour, _points(newest[name]), dashed=True))
    return Panel(title, "epoch", lines, (0.0, 1.0))


def _points(line: dict[str, Any]) -> list[tuple[float, float]]:
    return [(epoch, accuracy) for epoch, accuracy in enumerate(line["curve"], start=1)]


def main() -> None:
    arguments = [Path(each) for each in sys.argv[1:]]
    source = arguments[0] if arguments else REPOSITORY / "benchmarks/results/accuracy.jsonl"
    target = arguments[1] if len(arguments) > 1 else REPOSITORY / "docs/images/accuracy.svg"
    lines = [json.loads(line) for line in source.read_text().splitlines() if line.startswith("{")]
    if not any(line["question"] == QUESTION for line in lines):
        sys.exit(f"{source} has no line of bench_accuracy to draw")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(chart(lines))


if __name__ == "__main__":
    main()

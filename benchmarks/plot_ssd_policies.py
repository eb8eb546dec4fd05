"""Draws Tectonic-Shift's Figures 8 and 9 with our policies, from the lines of `bench_ssd_policies`.

Figure 8: what each policy absorbs of all bytes, in each workload; the optimum is a line over each
group. Figure 9: with a write budget, what is absorbed, written and filled, over *dynamic*.

    python -m benchmarks.bench_ssd_policies > benchmarks/results/ssd_policies.jsonl
    python -m benchmarks.plot_ssd_policies [benchmarks/results/ssd_policies.jsonl
        [docs/images/ssd-policies.svg [docs/images/ssd-policies-budget.svg]]] [--order own-splits]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY

_COLOURS = {
    "lru": "#7d7d7d",
    "fifo": "#b5b5b5",
    "historic": "#bf8700",
    "future": "#1f6feb",
    "hybrid": "#8250df",
    "next-use": "#1a7f37",
    "dynamic": "#7d7d7d",
    "reject-first": "#b5b5b5",
    "all": "#57606a",
}
_MEASURES = {
    "over_dynamic": "absorbed",
    "written_over_budget": "written, over the budget",
    "fills_over_dynamic": "filled from the store",
}
_LEFT_PX, _TOP_PX, _GROUP_PX, _HEIGHT_PX, _GAP_PX = 60, 50, 190, 240, 24
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Bars side by side: a value of each policy, and a ceiling over them if there is one."""

    label: str
    bars: Mapping[str, float]
    ceiling: float | None = None


def figure_8(lines: Sequence[Line], order: str) -> list[Group]:
    """Return a group for each workload."""
    found = [line for line in lines if line["question"] == "table 3" and line["order"] == order]
    return [
        Group(
            workload,
            {line["policy"]: line["absorbed_share"] for line in mine},
            mine[0]["optimum_share"],
        )
        for workload in dict.fromkeys(line["workload"] for line in found)
        if (mine := [line for line in found if line["workload"] == workload])
    ]


def figure_9(lines: Sequence[Line], order: str) -> list[Group]:
    """Return a group for each measure, without what admits far more than the budget."""
    found = [line for line in lines if line["question"] == "figure 9" and line["order"] == order]
    within = [line for line in found if line["written_over_budget"] <= 1.5]
    return [
        Group(label, {line["policy"]: line[measure] for line in within})
        for measure, label in _MEASURES.items()
        if within
    ]


def draw(groups: Sequence[Group], title: str) -> str:
    """Return the bars as SVG."""
    values = [value for group in groups for value in group.bars.values()]
    tallest = max([*values, *(group.ceiling or 0.0 for group in groups)], default=0.0) or 1.0
    width, height = _LEFT_PX + _GROUP_PX * len(groups) + 20, _TOP_PX + _HEIGHT_PX + 60
    base = _TOP_PX + _HEIGHT_PX

    def y(value: float) -> float:
        return base - value / tallest * _HEIGHT_PX

    parts = [_text(_LEFT_PX, 20, title, "start"), *_legend(groups, base + 44)]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_text(_LEFT_PX - 8, y(tick * tallest) + 4, f"{tick * tallest:.2g}", "end"))
    for number, group in enumerate(groups):
        left = _LEFT_PX + number * _GROUP_PX + _GAP_PX / 2
        wide = (_GROUP_PX - _GAP_PX) / max(1, len(group.bars))
        for at, (policy, value) in enumerate(group.bars.items()):
            top = y(value)
            parts.append(
                f'<rect x="{left + at * wide:.1f}" y="{top:.1f}" width="{wide - 2:.1f}" '
                f'height="{base - top:.1f}" fill="{_COLOURS[policy]}"/>'
            )
            parts.append(_text(left + (at + 0.5) * wide, top - 4, f"{value:.2g}", "middle", 9))
        if group.ceiling is not None:
            right = left + _GROUP_PX - _GAP_PX
            parts.append(
                f'<path d="M{left:.1f} {y(group.ceiling):.1f}H{right:.1f}" stroke="#cf222e" '
                'stroke-dasharray="4 3"/>'
            )
        parts.append(_text(left + (_GROUP_PX - _GAP_PX) / 2, base + 18, group.label, "middle"))
    parts.append(
        f'<path d="M{_LEFT_PX} {_TOP_PX}V{base}H{width - 20}" fill="none" stroke="#24292f"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _legend(groups: Sequence[Group], top: float) -> list[str]:
    policies = dict.fromkeys(policy for group in groups for policy in group.bars)
    parts = []
    for number, policy in enumerate(policies):
        x = _LEFT_PX + 90 * number
        parts.append(
            f'<rect x="{x}" y="{top - 10}" width="10" height="10" fill="{_COLOURS[policy]}"/>'
        )
        parts.append(_text(x + 14, top, policy, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#24292f">{escape(text)}</text>'
    )


def main() -> None:
    images = REPOSITORY / "docs/images"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = REPOSITORY / "benchmarks/results/ssd_policies.jsonl"
    parser.add_argument("source", type=Path, nargs="?", default=source)
    parser.add_argument("shares", type=Path, nargs="?", default=images / "ssd-policies.svg")
    parser.add_argument("budget", type=Path, nargs="?", default=images / "ssd-policies-budget.svg")
    parser.add_argument("--order", default="own-splits", help="in which jobs walk a partition")
    options = parser.parse_args()
    try:
        text = options.source.read_text()
    except OSError as error:
        parser.error(f"cannot read {options.source}: {error.strerror}")
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    shares, budget = figure_8(lines, options.order), figure_9(lines, options.order)
    if not (shares and budget):
        parser.error(f"{options.source} has no table 3 or no figure 9 in the order {options.order}")
    options.shares.write_text(
        draw(shares, f"Share of all bytes absorbed ({options.order}); dashed: the optimum")
    )
    options.budget.write_text(
        draw(budget, f"With a write budget, over dynamic ({options.order}, synchronized)")
    )


if __name__ == "__main__":
    main()

"""Draws the README's bar chart from the lines of `bench_mount`: speed as a multiple of ext4's in
the same run.

python -m benchmarks.bench_mount >> benchmarks/results/mount.jsonl    # the last line for a question
counts python -m benchmarks.plot_mount [benchmarks/results/mount.jsonl [docs/images/mount.svg]]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY

_COLOURS = {
    "DieselFS": "#1f6feb",
    "DieselFS --plain": "#8db9f7",
    "squashfuse_ll": "#b8b8b8",
    "kernel squashfs": "#7d7d7d",
}
_CONTENDERS = {
    "DieselFS": ("ours", "second", "fresh mount"),
    "DieselFS --plain": ("plain",),
    "squashfuse_ll": ("squashfuse",),
    "kernel squashfs": ("kernel image",),
}
_BASELINES = ("ext4", "ext4 cold")
_MEASURES = (  # what a question begins with, what it holds besides, and its label
    ("warm epoch", "of 4 KiB, 1 thread", "warm epoch, 4 KiB"),
    ("warm epoch", "of 4 KiB, 2 threads", "the same, 2 threads"),
    ("warm epoch", "of 110 KiB, 1 thread", "warm epoch, 110 KiB"),
    ("first epoch, chunks in node memory", "of 4 KiB", "first epoch from memory, 4 KiB"),
    ("first epoch, chunks in node memory", "of 110 KiB", "first epoch from memory, 110 KiB"),
    ("first epoch, cold local store", "of 4 KiB", "first epoch from disk, 4 KiB"),
    ("first epoch, cold local store", "of 110 KiB", "first epoch from disk, 110 KiB"),
    ("ls -lR", "", "ls -lR, second time"),
    ("ImageFolder", "", "ImageFolder, fresh mount"),
    ("DataLoader", "", "DataLoader, warm"),
)
_LABEL_PX, _PLOT_PX, _BAR_PX, _GAP_PX, _TOP_PX = 230, 430, 11, 12, 58


@dataclass(frozen=True, slots=True)
class Measure:
    label: str
    speeds: dict[str, float]
    """Multiples of ext4's speed."""


def measures(lines: list[dict[str, Any]]) -> list[Measure]:
    found = []
    for begin, part, label in _MEASURES:
        fitting = [
            line
            for line in lines
            if line["question"].startswith(begin) and part in line["question"]
        ]
        if fitting:
            found.append(Measure(label, _speeds(fitting[-1])))
    return found


def _speeds(line: dict[str, Any]) -> dict[str, float]:
    rates = line.get("files_per_s") or line.get("entries_per_s")
    if rates is None:
        rates = {name: 1 / seconds for name, seconds in line["seconds"].items()}
    baseline = next(rates[name] for name in _BASELINES if name in rates)
    # Medians of the round-by-round ratios would differ a little, but there is not one for each bar.
    return {
        contender: rates[key] / baseline
        for contender, keys in _CONTENDERS.items()
        for key in keys
        if key in rates
    }


def draw(found: list[Measure]) -> str:
    widest = max(speed for measure in found for speed in measure.speeds.values())
    scale = _PLOT_PX / max(widest, 1.0)
    parts, y = [], _TOP_PX
    for measure in found:
        middle = y + len(measure.speeds) * _BAR_PX / 2 + 4
        parts.append(_text(_LABEL_PX - 10, middle, measure.label, "end"))
        for contender, speed in measure.speeds.items():
            width = speed * scale
            parts.append(
                f'<rect x="{_LABEL_PX}" y="{y}" width="{width:.1f}" height="{_BAR_PX - 1}" fill="{_COLOURS[contender]}"/>'
            )
            parts.append(_text(_LABEL_PX + width + 4, y + 9, f"{speed:.2f}×", size=10))
            y += _BAR_PX
        y += _GAP_PX
    x = _LABEL_PX + scale
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP_PX - 8}" y2="{y - 4}" stroke="#d1242f" stroke-dasharray="4 3"/>'
    )
    parts.append(_text(x, _TOP_PX - 12, "ext4", "middle", colour="#d1242f"))
    parts += _legend()
    width = _LABEL_PX + _PLOT_PX + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{y}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend() -> list[str]:
    parts, x = [], 20
    for contender, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="10" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(x + 16, 20, contender))
        x += 40 + 8 * len(contender)
    return parts


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: int = 12, colour: str = "#24292f"
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def main() -> None:
    arguments = [Path(each) for each in sys.argv[1:]]
    source = arguments[0] if arguments else REPOSITORY / "benchmarks/results/mount.jsonl"
    target = arguments[1] if len(arguments) > 1 else REPOSITORY / "docs/images/mount.svg"
    lines = [json.loads(line) for line in source.read_text().splitlines() if line.startswith("{")]
    found = measures(lines)
    if not found:
        sys.exit(f"{source} has no line of bench_mount to draw")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(found))


if __name__ == "__main__":
    main()

"""Draws DIESEL's Fig. 6 anew from the lines of `bench_node_loss`: speed, as part of that with a
whole cache, against the share of the cache that was lost.

python -m benchmarks.bench_node_loss >> benchmarks/results/node_loss.jsonl    # the last line for a
share counts python -m benchmarks.plot_node_loss [benchmarks/results/node_loss.jsonl
[docs/images/node-loss.svg]]
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY

_COLOURS = {"peers": "#1f6feb", "memcached": "#7d7d7d"}
_LABELS = {"peers": "DieselFS, peers of one task", "memcached": "memcached"}
_LEFT_PX, _TOP_PX, _WIDTH_PX, _HEIGHT_PX = 60, 40, 460, 240

Curves = dict[str, list[tuple[float, float]]]
"""Of each contender: the share lost, and the part of its speed that is left."""


def curves(lines: list[dict[str, Any]]) -> Curves:
    by_share = {line["lost"]: line["of_whole"] for line in lines if "lost" in line}
    return {
        name: [(share, by_share[share][name]) for share in sorted(by_share)] for name in _COLOURS
    }


def draw(found: Curves) -> str:
    most = max(share for points in found.values() for share, _ in points)
    tallest = max(1.0, *(part for points in found.values() for _, part in points))

    def x(share: float) -> float:
        return _LEFT_PX + share / most * _WIDTH_PX

    def y(part: float) -> float:
        return _TOP_PX + (1 - part / tallest) * _HEIGHT_PX

    parts = [
        f'<path d="M{_LEFT_PX} {_TOP_PX}V{y(0)}H{x(most)}" fill="none" stroke="#24292f"/>',
        _text(x(most / 2), y(0) + 36, "share of the cache lost", "middle"),
        _text(_LEFT_PX, _TOP_PX - 20, "speed of the next epoch, 1 = whole cache", "start"),
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_text(_LEFT_PX - 8, y(tick) + 4, f"{tick:g}", "end"))
    for share in sorted({share for points in found.values() for share, _ in points}):
        parts.append(_text(x(share), y(0) + 18, f"{share:.0%}", "middle"))
    for number, (name, points) in enumerate(found.items()):
        colour = _COLOURS[name]
        line = " ".join(f"{x(share):.1f},{y(part):.1f}" for share, part in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(share):.1f}" cy="{y(part):.1f}" r="3.5" fill="{colour}"/>'
            for share, part in points
        ]
        at = _TOP_PX + 20 * number
        parts.append(
            f'<rect x="{_LEFT_PX + 250}" y="{at}" width="11" height="11" fill="{colour}"/>'
        )
        parts.append(_text(_LEFT_PX + 268, at + 10, _LABELS[name], "start"))
    width, height = _LEFT_PX + _WIDTH_PX + 40, _TOP_PX + _HEIGHT_PX + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="#24292f">{escape(text)}</text>'


def main() -> None:
    arguments = [Path(each) for each in sys.argv[1:]]
    source = arguments[0] if arguments else REPOSITORY / "benchmarks/results/node_loss.jsonl"
    target = arguments[1] if len(arguments) > 1 else REPOSITORY / "docs/images/node-loss.svg"
    lines = [json.loads(line) for line in source.read_text().splitlines() if line.startswith("{")]
    found = curves(lines)
    if not all(found.values()):
        sys.exit(f"{source} has no line of bench_node_loss to draw")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(found))


if __name__ == "__main__":
    main()

"""Line charts as SVG without a dependency: panels side by side, one legend below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]

_WIDTH_PX: Final = 340
_HEIGHT_PX: Final = 250
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 58, 20, 36, 46
_LEGEND_LINE_PX: Final = 18
_LEGEND_COLUMN_PX: Final = 250
_TICKS: Final = 5
_INK: Final = "#24292f"
_GRID: Final = "#e4e7eb"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel."""

    label: str
    """Its entry in the legend, which lines of the same label share, whatever panel they are in."""
    colour: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram of a chart, with its own axes."""

    title: str
    x_label: str
    lines: Sequence[Line]
    y_range: tuple[float, float]
    logarithmic_x: bool = False
    """True for an x axis by powers of ten; all x are positive then."""


def draw(panels: Sequence[Panel]) -> str:
    """Return the whole document."""
    entries = {line.label: line for panel in panels for line in panel.lines}
    width = len(panels) * _WIDTH_PX
    columns = max(1, width // _LEGEND_COLUMN_PX)
    height = _HEIGHT_PX + 10 + _LEGEND_LINE_PX * math.ceil(len(entries) / columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, number * _WIDTH_PX)
    for number, line in enumerate(entries.values()):
        x = 20 + number % columns * _LEGEND_COLUMN_PX
        y = _HEIGHT_PX + 8 + number // columns * _LEGEND_LINE_PX
        parts.append(_polyline([(x, y), (x + 22, y)], line))
        parts.append(_text(x + 28, y + 4, line.label, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float) -> list[str]:
    xs = [x for line in panel.lines for x, _ in line.points]
    low, high = min(xs), max(xs)
    scaled = math.log10 if panel.logarithmic_x else float
    x_span = scaled(high) - scaled(low) or 1.0
    y_low, y_high = panel.y_range
    x_px = _WIDTH_PX - _LEFT_PX - _RIGHT_PX
    y_px = _HEIGHT_PX - _TOP_PX - _BOTTOM_PX

    def place(x: float, y: float) -> Point:
        inside = min(max(y, y_low), y_high)
        return (
            left + _LEFT_PX + (scaled(x) - scaled(low)) / x_span * x_px,
            _TOP_PX + (y_high - inside) / ((y_high - y_low) or 1.0) * y_px,
        )

    right, bottom = left + _LEFT_PX + x_px, _TOP_PX + y_px
    parts = [_text(left + _LEFT_PX, _TOP_PX - 14, panel.title, "start", bold=True)]
    for y in _ticks(y_low, y_high):
        at = place(low, y)[1]
        parts.append(_polyline([(left + _LEFT_PX, at), (right, at)], Line("", _GRID, ())))
        parts.append(_text(left + _LEFT_PX - 6, at + 4, f"{y:g}", "end"))
    for x in _powers(low, high) if panel.logarithmic_x else _ticks(low, high):
        at = place(x, y_low)[0]
        parts.append(_polyline([(at, bottom), (at, bottom + 4)], Line("", _INK, ())))
        parts.append(_text(at, bottom + 17, f"{x:,.0f}" if x >= 1000 else f"{x:g}", "middle"))
    parts.append(_text((left + _LEFT_PX + right) / 2, bottom + 34, panel.x_label, "middle"))
    parts += [_polyline([place(*point) for point in line.points], line) for line in panel.lines]
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10(((high - low) or 1.0) / _TICKS))
    step *= next((f for f in (1, 2, 5) if (high - low) / (step * f) <= _TICKS + 1), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    found = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**power for power in found]


def _polyline(points: Sequence[Point], line: Line) -> str:
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    width = 1 if line.colour in (_GRID, _INK) else 1.8
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{places}" fill="none" stroke="{line.colour}"'
        f' stroke-width="{width}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{_INK}"'
        f"{weight}>{escape(text)}</text>"
    )

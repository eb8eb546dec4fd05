"""What a measure of the mount must reach, and what it reached: one JSON line each, and a table at
the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harness import report, spread


@dataclass(frozen=True, slots=True)
class Bar:
    """At least or at most a value, unless it is only reported."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        if self.least is None and self.most is None:
            return "reported"
        return f">= {self.least:,.6g}" if self.least is not None else f"<= {self.most:,.6g}"


REPORTED = Bar()


@dataclass(frozen=True, slots=True)
class Result:
    measure: str
    value: float
    bar: Bar


def judge(measure: str, values: float | Sequence[float], bar: Bar, **figures: object) -> Result:
    """Print the measure's line; the median of several values is what counts."""
    shown = spread(list(values)) if isinstance(values, Sequence) else values
    value = shown["median"] if isinstance(shown, dict) else shown
    holds = {} if bar == REPORTED else {"holds": bar.holds(value)}
    report(measure, ratio=shown, bar=str(bar), **holds, **figures)
    return Result(measure, value, bar)


def show_table(results: Iterable[Result]) -> None:
    """On stderr, for people."""
    print(f"{'measure':<98}{'result':>12}  bar", file=sys.stderr)
    for each in results:
        failed = "" if each.bar.holds(each.value) else "   MISSED"
        print(f"{each.measure:<98}{each.value:>12,.4g}  {each.bar}{failed}", file=sys.stderr)

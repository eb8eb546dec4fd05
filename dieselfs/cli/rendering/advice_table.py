"""`dlcmd advise TRACE`: what SSD tiers would absorb, as a table, a plot and a recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dieselfs.cache.advice.request_trace import RequestTrace
from dieselfs.cache.advice.tier_comparison import Comparison, TierOutcome
from dieselfs.cli.rendering.line_chart import Line, Panel, draw
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import LocalFileError

_COLOURS: Final = (
    *("#1f6feb", "#8db9f7", "#d1242f", "#e8a33d", "#8250df", "#1a7f37", "#57606a", "#bf3989"),
)
_OPTIMUM: Final = "optimum"


def print_advice(output: Output, trace: RequestTrace, found: Comparison) -> None:
    """Print the table and the recommendation, or the record with --json."""
    if output.json:
        output.record(as_record(trace, found))
        return
    read, duration_s = trace.requested_bytes, trace.end_s - trace.begin_s
    output.line(
        f"{len(trace.keys):,} requests of {human_size(read)} in {human_duration(duration_s)}; "
        f"working set {human_size(found.working_set_bytes)}"
    )
    output.line()
    headings = ["SSD", "POLICY", "REGION", "ABSORBED", "STORE", "WRITTEN"]
    output.table(headings, list(_rows(found)), ("WRITTEN", "REGION"))
    output.line()
    output.line(recommendation(found))


def _rows(found: Comparison) -> list[list[str]]:
    rows: list[list[str]] = []
    for at, each in enumerate(found.outcomes):
        size = human_size(each.cache_bytes)
        region = human_size(each.region_bytes) if each.region_bytes else "–"
        done = each.replayed
        rows.append(
            [
                *(size, each.policy, region, f"{each.absorbed_share:.1%}"),
                *(human_size(each.store_bytes), human_size(done.written)),
            ]
        )
        following = found.outcomes[at + 1 : at + 2]
        if not following or following[0].cache_bytes != each.cache_bytes:
            share = found.optimum_shares[each.cache_bytes]
            left = human_size(done.requested * (1 - share))
            rows.append([size, _OPTIMUM, "–", f"{share:.1%}", left, "–"])
    return rows


def recommendation(found: Comparison) -> str:
    """Return the sentence that names the knee, and what a larger SSD adds."""
    chosen = found.recommended
    if chosen is None:
        return "no SSD of these sizes absorbs 1% of the reads: too few are repeated in time"
    share = chosen.absorbed_share
    said = f"{human_size(chosen.cache_bytes)} with {chosen.policy} absorb {share:.0%}"
    larger = [each for each in found.best if each.cache_bytes > chosen.cache_bytes]
    most = max(larger, key=lambda each: each.absorbed_share, default=None)
    if most is not None:
        added = max(0.0, most.absorbed_share - share)
        said += f"; {human_size(most.cache_bytes)} add {added:.0%}"
    lru = [
        each.absorbed_share
        for each in found.outcomes
        if each.policy == "lru" and each.cache_bytes == chosen.cache_bytes
    ]
    if lru and chosen.policy != "lru":
        said += f"; lru absorbs {max(lru):.0%} there"
    return f"{said}; the optimum is {found.optimum_shares[chosen.cache_bytes]:.0%}"


def as_record(trace: RequestTrace, found: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON record."""
    chosen = found.recommended
    return {
        "requests": len(trace.keys),
        "requested_bytes": trace.requested_bytes,
        "working_set_bytes": found.working_set_bytes,
        "duration_s": trace.end_s - trace.begin_s,
        "tiers": [_tier(each) for each in found.outcomes],
        "optimum": [
            {"ssd_bytes": size, "absorbed_share": share}
            for size, share in found.optimum_shares.items()
        ],
        "recommended": None if chosen is None else _tier(chosen),
        "recommendation": recommendation(found),
    }


def _tier(outcome: TierOutcome) -> Mapping[str, Any]:
    return {
        "policy": outcome.policy,
        "ssd_bytes": outcome.cache_bytes,
        "region_bytes": outcome.region_bytes,
        "absorbed_share": outcome.absorbed_share,
        "hit_bytes": outcome.replayed.hits,
        "store_bytes": outcome.store_bytes,
        "written_bytes": outcome.replayed.written,
        "reinserted_bytes": outcome.replayed.reinserted,
    }


def write_plot(file: Path, found: Comparison) -> None:
    """Write the absorbed share and the bytes of the slow store by size; raise `LocalFileError`."""
    largest = max(each.cache_bytes for each in found.outcomes)
    scale, unit = _unit(largest)
    read = found.outcomes[0].replayed.requested
    read_scale, read_unit = _unit(read)
    x_label = f"SSD, {unit}"
    shares = _lines(found, scale)
    left = [
        Line(
            each.label,
            each.colour,
            [(x, read * (1 - y) / read_scale) for x, y in each.points],
            each.dashed,
        )
        for each in shares
    ]
    panels = [
        Panel("Absorbed share of the reads", x_label, shares, (0.0, 1.0)),
        Panel(f"Read from the slow store, {read_unit}", x_label, left, (0.0, read / read_scale)),
    ]
    try:
        file.write_text(draw(panels))
    except OSError as error:
        raise LocalFileError(
            f"cannot write the plot {file}: {error.strerror}", "name another file"
        ) from error


def _lines(found: Comparison, scale: float) -> list[Line]:
    """Return a line for each policy, with its best region size, and one for the optimum."""
    shares: dict[str, dict[int, float]] = {}
    for each in found.outcomes:
        of_policy = shares.setdefault(each.policy, {})
        known = of_policy.get(each.cache_bytes, 0.0)
        of_policy[each.cache_bytes] = max(known, each.absorbed_share)
    lines = [
        Line(name, _COLOURS[at % len(_COLOURS)], _points(of_policy, scale))
        for at, (name, of_policy) in enumerate(shares.items())
    ]
    return [*lines, Line(_OPTIMUM, "#000000", _points(found.optimum_shares, scale), dashed=True)]


def _points(shares: Mapping[int, float], scale: float) -> list[tuple[float, float]]:
    return [(size / scale, share) for size, share in shares.items()]


def _unit(size_bytes: int) -> tuple[float, str]:
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(0, (size_bytes.bit_length() - 1) // 10), len(units) - 1)
    return float(1 << 10 * power), units[power]

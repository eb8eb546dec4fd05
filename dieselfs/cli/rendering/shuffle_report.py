"""`dlcmd shuffle --report`: how well group sizes mix classes.

The report is a table or a JSON object, and a plot.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dieselfs.cli.rendering.line_chart import Line, Panel, draw
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import UsageError
from dieselfs.shuffle.class_labels import ClassRule, class_folder_labels
from dieselfs.shuffle.quality import (
    DEFAULT_BATCH,
    GroupQuality,
    OrderQuality,
    ShuffleReport,
    report,
    usual_group_sizes,
)
from metadata.snapshot import Snapshot

_HEADINGS: Final = (
    *("ORDER", "CLASSES", "5%", "LAST TENTH", "DISTANCE", "EFFECTIVE BATCH"),
    *("CHUNKS MET", "MEMORY"),
)
_GROUPS, _FULL, _DIRECTORY = "#1f6feb", "#1a7f37", "#d1242f"


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The options of a report, as the command line gives them."""

    groups: tuple[int, ...]
    """Group sizes; empty for the usual ones."""
    seed: int
    epoch: int
    batch: int | None
    memory_bytes: int | None
    labels: ClassRule
    under: str
    plot: Path | None


def print_report(output: Output, snapshot: Snapshot, request: ReportRequest) -> None:
    """Print a report, and write its plot if the request names one.

    Raises `UsageError` for a plot that is not SVG.
    """
    if request.plot is not None and request.plot.suffix.lower() != ".svg":
        raise UsageError(
            f"--plot {request.plot}: plots are SVG", f"write {request.plot.with_suffix('.svg')}"
        )
    found = report(
        snapshot,
        request.groups or usual_group_sizes(snapshot.chunk_count),
        class_folder_labels(snapshot, request.labels, request.under),
        request.batch or DEFAULT_BATCH,
        request.seed,
        request.epoch,
        request.memory_bytes,
    )
    if request.plot is not None:
        request.plot.write_text(plot(found))
    if output.json:
        output.record(as_record(found))
        return
    output.line(
        f"{snapshot.dataset.name}@{found.snapshot}: {counted(found.files, 'file')} of "
        f"{counted(found.classes, 'class')} in {counted(found.chunks, 'chunk')}; batches of "
        f"{found.batch}, seed {found.seed}, epoch {found.epoch}"
    )
    output.line()
    output.table(_HEADINGS, rows(found), expendable=["CHUNKS MET", "LAST TENTH"])
    output.line()
    for line in advice(found, snapshot.dataset.name, request.memory_bytes):
        output.line(line)


def rows(found: ShuffleReport) -> list[tuple[str, ...]]:
    """Return the rows for people: the references stand above and below the group sizes."""
    groups = {quality.group_size: quality for quality in found.groups}
    for quality in (found.recommended, found.fitting):
        if quality is not None:
            groups[quality.group_size] = quality
    return [
        _row("full shuffle", found.full),
        *(
            _row(f"group {size:,}", groups[size].order, human_size(groups[size].memory_bytes))
            for size in sorted(groups, reverse=True)
        ),
        _row("directory order", found.directory),
    ]


def _row(name: str, order: OrderQuality, memory: str = "") -> tuple[str, ...]:
    mixing = order.classes_per_batch
    return (
        name,
        *(f"{mixing.mean:.1f}", f"{mixing.fifth_percentile:.0f}", f"{mixing.by_part[-1]:.1f}"),
        *(f"{round(order.distance, 3) + 0.0:.3f}", f"{mixing.effective_batch:.1f}"),
        *(f"{order.chunks_in_batch:.0f}", memory),
    )


def advice(found: ShuffleReport, dataset: str, memory_bytes: int | None) -> list[str]:
    """Return the lines that say what follows from the report."""
    if found.classes == 1:
        return [
            "all files are of one class, so there is no mixing to measure: choose another rule "
            "with --labels or --under"
        ]
    best = found.recommended
    lines = [
        f"as good as a full shuffle: groups of {counted(best.group_size, 'chunk')} or more,"
        f" {human_size(best.memory_bytes)} of memory"
    ]
    if found.fitting is not None:
        how = "as good as" if found.is_close(found.fitting.order) else "worse than"
        lines.append(
            f"in {human_size(memory_bytes or 0)} fit groups of "
            f"{counted(found.fitting.group_size, 'chunk')}: {how} a full shuffle"
        )
    elif memory_bytes is not None:
        needed = human_size(found.least_memory_bytes)
        lines.append(
            f"in {human_size(memory_bytes)} no group fits: one chunk and those being fetched need "
            f"{needed}"
        )
    if found.chunk_classes.sorted_by_class:
        lines += _warning(found, dataset)
    return lines


def _warning(found: ShuffleReport, dataset: str) -> list[str]:
    chunks, best = found.chunk_classes, found.recommended
    return [
        "",
        f"warning: packed sorted by class: a chunk holds {chunks.found:.1f} of "
        f"{found.classes:,} classes, where a mixed one would hold"
        f" {chunks.expected:.1f}.",
        (
            f"Small groups train worse on it; {counted(best.group_size, 'chunk')} a group are "
            f"needed ({human_size(best.memory_bytes)})."
        ),
        "Better pack the source again, under another name and in the default order, scatter:",
        (
            f"    dlcmd put SOURCE/ dl://{dataset}-mixed            # `dlcmd get {dataset} "
            "SOURCE` if it is gone"
        ),
    ]


def as_record(found: ShuffleReport) -> dict[str, Any]:
    """Return the whole report as a JSON record."""
    record = asdict(found)
    orders = [
        (record["full"], found.full),
        (record["directory"], found.directory),
        *((each["order"], quality.order) for each, quality in _groups(record, found)),
    ]
    for each, order in orders:
        each["classes_per_batch"]["effective_batch"] = order.classes_per_batch.effective_batch
    for each, quality in _groups(record, found):
        each["close_to_full_shuffle"] = found.is_close(quality.order)
    record["chunk_classes"]["sorted_by_class"] = found.chunk_classes.sorted_by_class
    return record


def _groups(
    record: dict[str, Any], found: ShuffleReport
) -> list[tuple[dict[str, Any], GroupQuality]]:
    pairs = [*zip(record["groups"], found.groups, strict=True)]
    pairs.append((record["recommended"], found.recommended))
    if found.fitting is not None:
        pairs.append((record["fitting"], found.fitting))
    return pairs


def plot(found: ShuffleReport) -> str:
    """Return an SVG plot of classes per batch and distance by group size.

    Dashed lines show a full shuffle and directory order.
    """
    groups = {quality.group_size: quality.order for quality in (*found.groups, found.recommended)}
    sizes = sorted(groups)
    title, label = f"Classes in {found.batch} samples", "group size, chunks"

    def panel(name: str, values: list[float], full: float, directory: float) -> Panel:
        def level(text: str, colour: str, value: float) -> Line:
            return Line(text, colour, [(sizes[0], value), (sizes[-1], value)], dashed=True)

        lines = [
            Line("chunk-wise shuffle", _GROUPS, [*zip(sizes, values, strict=True)]),
            level("full shuffle", _FULL, full),
            level("directory order", _DIRECTORY, directory),
        ]
        highest = max(*values, full, directory, 1.0)
        return Panel(name, label, lines, (0.0, highest * 1.05), logarithmic_x=True)

    classes = [groups[size].classes_per_batch.mean for size in sizes]
    distances = [groups[size].distance for size in sizes]
    full, directory = (order.classes_per_batch.mean for order in (found.full, found.directory))
    far = "Distance from a full shuffle"
    return draw(
        [
            panel(title, classes, full, directory),
            panel(far, distances, 0.0, found.directory.distance),
        ]
    )

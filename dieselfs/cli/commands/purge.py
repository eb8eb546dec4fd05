"""`dlcmd purge`: merge chunks with holes and free their space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.command import command, dry_run_option, grace_option, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.rendering.output import Output, counted, picked
from dieselfs.cli.rendering.upload_limit import throttled, upload_record, uploads_of
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.percentages import ShareOrNone
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_dataset

if TYPE_CHECKING:
    from chunkstore.stores.adaptive_limit import LimitStatistics
    from dieselfs.housekeeping.purge.purge_request import PurgePlan, PurgeReport
    from dieselfs.housekeeping.retention import RetiredChunk


@command(
    examples=[
        "dlcmd purge imagenet",
        "dlcmd purge -n imagenet",
        "dlcmd purge --leave 5% --grace 14d imagenet",
        "dlcmd purge --grace 0 imagenet    # nobody reads older snapshots",
    ]
)
@click.argument("dataset")
@click.option(
    "--leave",
    type=ShareOrNone(),
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="Holes that may remain, as a share of the live bytes.",
)
@size_option(
    "--merge-small",
    "small_bytes",
    default="1MiB",
    help_text="Also merge chunks below this size if there are eight or more; 0: none.",
)
@grace_option(
    "Keep retired chunks this long, for mounts and snapshots that the store does not know."
)
@size_option(
    "--chunk-size",
    "target_bytes",
    help_text="Size of the new chunks (default: what the dataset was created with).",
)
@click.option(
    "--keep-together",
    type=click.Choice(["none", "sample", "directory"]),
    help="Files that go on sharing a chunk (default: what the dataset was created with).",
)
@size_option("--round", "round_bytes", default="1GiB", help_text="Commit after moving this much.")
@dry_run_option
def purge(context: CommandContext, dataset: str, grace: float, dry_run: bool, **extent: Any) -> int:
    """Merge chunks with holes into new chunks, and delete the old ones.

    Deleted and replaced files leave holes. An old chunk is deleted after the grace period, and
    never while a published snapshot, a tag or a running mount needs it. Until then the dataset
    takes more space. The next purge or gc deletes the chunks that wait now. Readers and writers may
    go on. The same command finishes an interrupted purge.
    """
    from dieselfs.housekeeping.purge.purge import plan
    from dieselfs.housekeeping.purge.purge_request import PurgeRequest

    name, request = parse_dataset(dataset), PurgeRequest(grace_s=grace, **extent)
    with context.client(DatasetAddress(name)) as client:
        if dry_run:
            return _print_plan(context.output, name, plan(client.dataset, request))
        with context.progress(f"purge {name}") as progress:
            report = client.purge(request, progress)
        uploads = uploads_of(client.dataset.store)
    _print_report(context.output, name, report, grace, uploads)
    return ExitCode.INTEGRITY if report.damaged else ExitCode.OK


def _print_plan(output: Output, name: str, plan: PurgePlan) -> int:
    for planned in plan.retired:
        live, holes = planned.live_bytes, planned.hole_bytes
        action = "rewrite" if live else "retire"
        output.result(
            {"action": action, "chunk": str(planned.id), "live_bytes": live, "hole_bytes": holes},
            f"would rewrite chunk {planned.id}: {human_size(live)} live, {human_size(holes)} of "
            "holes",
        )
    for chunk in plan.deletable:
        output.result(
            {"action": "delete", "chunk": str(chunk.ref.id), "bytes": chunk.size_bytes},
            f"would delete chunk {chunk.ref.id}: {human_size(chunk.size_bytes)}",
        )
    moved = sum(chunk.live_bytes for chunk in plan.retired)
    freed = sum(chunk.hole_bytes for chunk in plan.retired)
    deleted = sum(chunk.size_bytes for chunk in plan.deletable)
    output.done(
        {
            "dataset": name,
            "bytes": plan.dataset_bytes,
            "live_bytes": plan.live_bytes,
            "rewrite": len(plan.retired),
            "move_bytes": moved,
            "free_bytes": freed,
            "delete": len(plan.deletable),
            "delete_bytes": deleted,
            "waiting": _summary(plan.waiting),
        },
        f"{name}: would move {human_size(moved)} out of {counted(len(plan.retired), 'chunk')} to "
        f"free {human_size(freed)}, and delete {counted(len(plan.deletable), 'old chunk')} "
        f"({human_size(deleted)})",
    )
    return ExitCode.OK


def _print_report(
    output: Output, name: str, report: PurgeReport, grace_s: float, uploads: LimitStatistics
) -> None:
    pinned = [chunk for chunk in report.waiting if chunk.ref.id in report.pinned]
    young = [chunk for chunk in report.waiting if chunk.ref.id not in report.pinned]
    output.details(
        _record(name, report, pinned, young) | upload_record(uploads),
        {
            "before": human_size(report.bytes_before),
            "after": human_size(report.bytes_after),
            "live": human_size(report.live_bytes),
            "moved": f"{counted(report.files_moved, 'file')}, {human_size(report.bytes_moved)}",
            "chunks": (
                f"{report.chunks_retired:,} retired ({report.chunks_dead:,} without live "
                f"files), {report.chunks_added:,} new"
            ),
            "deleted": (
                f"{counted(report.chunks_deleted, 'old chunk')}, {human_size(report.bytes_deleted)}"
            ),
        },
    )
    if output.json:
        return
    needed = "a published snapshot, a tag or a mount needs them (see `dlcmd snapshot ls`, `prune`)"
    not_over = f"the grace period of {human_duration(grace_s)} is not over"
    for chunks, why in ((pinned, needed), (young, not_over)):
        if chunks:
            size = human_size(sum(chunk.size_bytes for chunk in chunks))
            output.line(f"waiting: {counted(len(chunks), 'old chunk')}, {size}: {why}")
    if line := throttled(uploads):
        output.line(line)
    for reason in report.unreadable:
        output.line(f"no chunk is deleted: {reason}")
    for damaged in report.damaged:
        output.line(f"skipped: chunk {damaged.id}: {damaged.reason}")
    if report.damaged:
        output.note(f"{name}: see `dlcmd fsck {name}` for the files that are damaged")
    elif not report.changed:
        output.note(f"{name}: nothing to do")


def _record(
    name: str, report: PurgeReport, pinned: Sequence[RetiredChunk], young: Sequence[RetiredChunk]
) -> dict[str, Any]:
    return {
        "dataset": name,
        **picked(report, "bytes_before bytes_after live_bytes files_moved bytes_moved rounds"),
        **picked(report, "chunks_retired chunks_dead chunks_added chunks_deleted bytes_deleted"),
        "deletions_dropped": report.deletions_dropped,
        "waiting": {"pinned": _summary(pinned), "grace": _summary(young)},
        "unreadable": list(report.unreadable),
        "damaged": [{"chunk": str(found.id), "reason": found.reason} for found in report.damaged],
    }


def _summary(chunks: Sequence[RetiredChunk]) -> dict[str, int]:
    return {"chunks": len(chunks), "bytes": sum(chunk.size_bytes for chunk in chunks)}

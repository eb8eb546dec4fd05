"""`dlcmd shuffle`: the order of an epoch, for programs that read the files themselves.

With --report it measures the quality of such orders.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dieselfs.cli.command import command, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.dataset.address import parse_address
from dieselfs.errors import SnapshotNotFound, UsageError

if TYPE_CHECKING:
    from dieselfs.dataset.address import DatasetAddress
    from dieselfs.shuffle.class_labels import ClassRule
    from metadata.snapshot import Snapshot

# The ranges that `dieselfs.shuffle.order.ShuffleParameters` accepts.
_SEED: Final = click.IntRange(0, 2**64 - 1)
_COUNT: Final = click.IntRange(1, 2**31 - 1)
_DEFAULT_GROUP: Final = 100
"""A copy of `dieselfs.shuffle.order.DEFAULT_GROUP_SIZE`, which would load NumPy for the help."""


@command(
    examples=[
        "dlcmd shuffle imagenet --seed 1 --epoch 0 > epoch0.lst",
        "dlcmd shuffle imagenet --epoch 3 --rank 0 --world 8 -0 | xargs -0 -n 64 ./train-step",
        "dlcmd shuffle imagenet --report --under train --memory 8GiB --plot classes.svg",
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.option(
    "--seed", type=_SEED, default=0, show_default=True, help="The same seed gives the same order."
)
@click.option(
    "--epoch",
    type=_SEED,
    default=0,
    show_default=True,
    help="Number of the epoch; each has an order of its own.",
)
@click.option(
    "--group",
    "groups",
    type=_COUNT,
    multiple=True,
    metavar="N",
    help="Chunks that are shuffled together: the memory that a reader needs (default: 100; "
    "with --report, several may be given).",
)
@click.option(
    "--rank",
    type=click.IntRange(0, _COUNT.max),
    default=0,
    show_default=True,
    help="Print the files of this rank, from 0 to world - 1.",
)
@click.option("--world", type=_COUNT, default=1, show_default=True, help="Number of ranks.")
@click.option("-0", "--null", "zero", is_flag=True, help="End each path with NUL, for xargs -0.")
@click.option(
    "--report",
    is_flag=True,
    help=("Print no files, but how well classes are mixed, and the memory needed, by group size."),
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="With --report: samples per batch (default: 256).",
)
@size_option("--memory", help_text="With --report: name the largest group that fits.")
@click.option(
    "--labels",
    type=click.Choice(["parent", "top"]),
    help="With --report: a file's class is the directory that it is in (parent, the "
    "default), or the first one below --under (top).",
)
@click.option(
    "--under", metavar="DIR", help="With --report: only files below this directory, such as train."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="With --report: also draw the report.",
)
def shuffle(
    context: CommandContext,
    address: str,
    seed: int,
    epoch: int,
    groups: Sequence[int],
    rank: int,
    world: int,
    zero: bool,
    report: bool,
    batch: int | None,
    memory: int | None,
    labels: ClassRule | None,
    under: str | None,
    plot: Path | None,
) -> None:
    """Print one rank's files of an epoch in chunk-wise shuffled order, one path a line.

    The order depends only on the snapshot and these numbers, so every node prints the same.
    --report shows instead what a group size does to the classes per batch, compared with a full
    shuffle and with directory order.
    """
    if report:
        if rank or world > 1 or zero:
            raise UsageError("--report measures a whole epoch", "leave out --rank, --world and -0")
        from dieselfs.cli.rendering.shuffle_report import ReportRequest, print_report

        request = ReportRequest(
            tuple(groups), seed, epoch, batch, memory, labels or "parent", under or "", plot
        )
        with _open_snapshot(context, address) as snapshot:
            print_report(context.output, snapshot, request)
        return
    if any(value is not None for value in (batch, memory, labels, under, plot)):
        raise UsageError(
            "--batch, --memory, --labels, --under and --plot only work with --report",
            "add --report",
        )
    if len(groups) > 1:
        raise UsageError("an order has one --group", "give one, or add --report")
    if rank >= world:
        raise UsageError(f"--rank {rank} of --world {world}", "ranks count from 0 to world - 1")
    from dieselfs.shuffle.order import shuffle_order

    separator = b"\0" if zero or context.output.json else b"\n"
    group = groups[0] if groups else _DEFAULT_GROUP
    with _open_snapshot(context, address) as snapshot:
        bounds, files = snapshot.chunk_first_inode, snapshot.regular_files()
        order = shuffle_order(bounds, seed, epoch, group, rank, world, files=files)
        try:
            text = snapshot.paths_text(order.inodes, separator)
        except ValueError as error:
            raise UsageError(
                "a path holds a line break: one path a line would be ambiguous", "use -0 or --json"
            ) from error
    _print(context, text.split(separator)[:-1], separator)


def _open_snapshot(context: CommandContext, address: str) -> Snapshot:
    from metadata.snapshot import Snapshot

    place = parse_address(address)
    if place.path:
        raise UsageError(f"{place}: only whole datasets are shuffled", f"write {place.dataset}")
    return Snapshot.open(_snapshot_file(context, place))


def _snapshot_file(context: CommandContext, place: DatasetAddress) -> Path:
    """Return the snapshot that is named, which needs no index.

    Otherwise return a fresh one, made if there is none.
    """
    from dieselfs.snapshots.snapshot_choice import find_snapshot, newest_fresh
    from metadata.errors import SnapshotRefused, SnapshotStale

    folder = context.snapshot_folder
    if place.snapshot:
        return find_snapshot(place.snapshot, place.dataset, folder, context.store())
    with context.client(place) as client:
        try:
            return newest_fresh(place.dataset, folder, client.dataset.store, client.dataset.index)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused):
            return client.save_meta()


def _print(context: CommandContext, paths: list[bytes], separator: bytes) -> None:
    output = context.output
    for path in paths:
        if separator == b"\0" and not output.json:
            output.data(path + separator)
        else:
            shown = os.fsdecode(path)
            output.result({"path": shown}, output.name(shown))

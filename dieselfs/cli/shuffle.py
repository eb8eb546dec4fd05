"""`dlcmd shuffle`: the order of an epoch, for programs that read the files themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dieselfs.address import parse_address
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.verb import verb
from dieselfs.errors import SnapshotNotFound, UsageError

if TYPE_CHECKING:
    from dieselfs.address import Address

# As wide as `dieselfs.shuffle.ShuffleParameters` takes them.
_SEED: Final = click.IntRange(0, 2**64 - 1)
_COUNT: Final = click.IntRange(1, 2**31 - 1)


@verb(
    examples=[
        "dlcmd shuffle imagenet --seed 1 --epoch 0 > epoch0.lst",
        "dlcmd shuffle imagenet --epoch 3 --rank 0 --world 8 -0 | xargs -0 -n 64 ./train-step",
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.option(
    "--seed",
    type=_SEED,
    default=0,
    show_default=True,
    help="Same seed, same order.",
)
@click.option("--epoch", type=_SEED, default=0, show_default=True)
@click.option(
    "--group",
    type=_COUNT,
    default=100,
    show_default=True,
    help="Chunks shuffled together: the memory that a reader needs.",
)
@click.option("--rank", type=click.IntRange(0, _COUNT.max), default=0, show_default=True)
@click.option(
    "--world",
    type=_COUNT,
    default=1,
    show_default=True,
    help="How many ranks there are.",
)
@click.option("-0", "--null", "zero", is_flag=True, help="End each path with NUL, for xargs -0.")
def shuffle(
    invocation: Invocation,
    address: str,
    seed: int,
    epoch: int,
    group: int,
    rank: int,
    world: int,
    zero: bool,
) -> None:
    """Print one rank's files of an epoch in chunk-wise shuffled order, one path a line.

    The order depends on nothing but the snapshot and these numbers; every node prints the same.
    """
    if rank >= world:
        raise UsageError(f"--rank {rank} of --world {world}", "ranks count from 0 to world - 1")
    place = parse_address(address)
    if place.path:
        raise UsageError(f"{place}: only whole datasets are shuffled", f"write {place.dataset}")
    from dieselfs.shuffle import shuffle_order
    from metadata.snapshot import Snapshot

    separator = b"\0" if zero or invocation.output.json else b"\n"
    with Snapshot.open(_snapshot_file(invocation, place)) as snapshot:
        order = shuffle_order(snapshot.chunk_first_inode, seed, epoch, group, rank, world)
        try:
            text = snapshot.paths_text(order.inodes, separator)
        except ValueError as error:
            raise UsageError(
                "a path holds a line break: one path a line would be ambiguous", "use -0 or --json"
            ) from error
    _print(invocation, text.split(separator)[:-1], separator)


def _snapshot_file(invocation: Invocation, place: Address) -> Path:
    """The snapshot that is named, which needs no index; else a fresh one, made if there is none."""
    from dieselfs.cli.snapshot_choice import find_snapshot, newest_fresh
    from metadata.errors import SnapshotRefused, SnapshotStale

    folder = invocation.snapshot_folder
    if place.snapshot:
        return find_snapshot(place.snapshot, place.dataset, folder, invocation.store())
    with invocation.client(place) as client:
        try:
            return newest_fresh(place.dataset, folder, client.dataset.store, client.dataset.index)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused):
            return client.save_meta()


def _print(invocation: Invocation, paths: list[bytes], separator: bytes) -> None:
    output = invocation.output
    for path in paths:
        if output.json:
            output.record({"path": os.fsdecode(path)})
        elif separator == b"\0":
            output.data(path + separator)
        else:
            output.line(output.name(os.fsdecode(path)))

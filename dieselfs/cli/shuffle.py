"""`dlcmd shuffle`: the order of an epoch, for programs that read the files themselves."""

from __future__ import annotations

import click

from dieselfs.address import parse_address
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.verb import verb
from dieselfs.errors import UsageError


@verb(
    examples=[
        "dlcmd shuffle imagenet --seed 1 --epoch 0 > epoch0.lst",
        "dlcmd shuffle imagenet --epoch 3 --rank 0 --world 8 -0 | xargs -0 -n 64 ./train-step",
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Same seed, same order.",
)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--group",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Chunks shuffled together: the memory that a reader needs.",
)
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--world",
    type=click.IntRange(min=1),
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
    with invocation.client(place) as client:
        paths = client.shuffle(
            seed=seed, epoch=epoch, group_size=group, rank=rank, world_size=world
        )
    _print(invocation, paths, zero)


def _print(invocation: Invocation, paths: list[str], zero: bool) -> None:
    output = invocation.output
    for path in paths:
        if output.json:
            output.record({"path": path})
        elif zero:
            output.data(path.encode(errors="surrogateescape") + b"\0")
        else:
            output.line(output.name(path))

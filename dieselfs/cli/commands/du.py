"""`dlcmd du`: sizes added up by directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command, filter_options, human_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands.ls import listed
from dieselfs.dataset.address import parse_address
from dieselfs.dataset.path_filter import PathFilter

if TYPE_CHECKING:
    from dieselfs.dataset.file_stat import FileStat


@command(examples=["dlcmd du imagenet", "dlcmd du -H -d 1 imagenet:train"])
@click.argument("address")
@click.option(
    "-d",
    "--depth",
    "--max-depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show N levels of directories.",
)
@click.option(
    "-s", "--summarize", "depth", flag_value=0, type=int, help="Show only the total (-d 0)."
)
@human_option
@filter_options
def du(
    context: CommandContext,
    address: str,
    depth: int | None,
    human: bool | None,
    filters: PathFilter,
) -> None:
    """Add up the sizes of the files in each directory and below it."""
    place = parse_address(address)
    with context.client(place) as client:
        entries = (
            entry for entry in listed(client, place, recursive=True) if filters.takes(entry.path)
        )
        sums = add_up(entries, place.path, depth)
    output = context.output
    for path in sorted(sums, key=_children_first):
        size_bytes, files = sums[path]
        output.result(
            {"path": path, "bytes": size_bytes, "files": files},
            f"{output.size(size_bytes, human):>12}  {output.name(path or '.')}",
        )


def add_up(entries: Iterable[FileStat], top: str, depth: int | None) -> dict[str, tuple[int, int]]:
    """Return (bytes, files) of `top` and of the directories down to `depth` levels below it."""
    sums: dict[str, tuple[int, int]] = {top: (0, 0)}
    for entry in entries:
        directory = entry.kind == "directory"
        holder = entry.path if directory else entry.path.rpartition("/")[0]
        for path in _holders(holder, top, depth):
            size, files = sums.get(path, (0, 0))
            sums[path] = (size, files) if directory else (size + entry.size, files + 1)
    return sums


def _holders(directory: str, top: str, depth: int | None) -> Iterator[str]:
    """Yield `top` and the directories from there to `directory`, itself included.

    They go down to `depth` levels below `top`.
    """
    yield top
    below = directory.removeprefix(top).strip("/")
    names = below.split("/") if below and directory.startswith(top) else []
    path = top
    for name in names[:depth]:
        path = f"{path}/{name}" if path else name
        yield path


def _children_first(path: str) -> list[str]:
    """Return a key that sorts as du does: by name, a directory after its contents."""
    return [*(path.split("/") if path else []), chr(0x10FFFF)]

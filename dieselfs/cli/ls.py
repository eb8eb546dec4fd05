"""`dlcmd ls`: list a directory, or with no address the datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from dieselfs.address import Address, parse_address
from dieselfs.cli.entries import entry_record, local_time, permissions
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.output import Output, counted
from dieselfs.cli.verb import filter_options, human_option, recursive_option, verb
from dieselfs.errors import DirectoryNotFound
from dieselfs.path_filter import PathFilter

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.file_stat import FileStat

_SORT_KEYS: dict[str, Callable[[FileStat], Any]] = {
    "name": lambda entry: entry.path,
    "size": lambda entry: -entry.size,
    "time": lambda entry: -entry.mtime_ns,
}


@verb(
    examples=[
        "dlcmd ls",
        "dlcmd ls imagenet:train -lH",
        "dlcmd ls dl://imagenet --recursive --include '*.jpg' --count-only",
        "dlcmd ls imagenet:train --sort size --limit 10 --json",
    ]
)
@click.argument("address", required=False)
@click.option("-l", "--long", is_flag=True, help="Mode, size and time as well.")
@recursive_option("Everything below; whole paths.")
@human_option
@filter_options
@click.option("--count-only", is_flag=True, help="How many there are, and their size.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N.")
@click.option(
    "--sort",
    type=click.Choice(list(_SORT_KEYS)),
    help="Largest or newest first; reads all before it prints.",
)
def ls(
    invocation: Invocation,
    address: str | None,
    long: bool,
    recursive: bool,
    human: bool | None,
    filters: PathFilter,
    count_only: bool,
    limit: int | None,
    sort: str | None,
) -> None:
    """List a directory of a dataset; a file lists itself. Without ADDRESS, list the datasets."""
    if address is None:
        from dieselfs.cli.dataset import print_datasets

        print_datasets(invocation, human)
        return
    place = parse_address(address)
    with invocation.client(place) as client:
        entries: Iterable[FileStat] = (
            e for e in listed(client, place, recursive) if filters.takes(e.path)
        )
        if sort:
            entries = sorted(entries, key=_SORT_KEYS[sort])
        entries = itertools.islice(entries, limit)
        if count_only:
            _print_counts(invocation.output, entries, human)
        else:
            _print_entries(invocation.output, entries, long, recursive, human)


def listed(client: Client, place: Address, recursive: bool) -> Iterable[FileStat]:
    """The children of a directory or all below it; a missing one is a `DirectoryNotFound`."""
    from metadata.errors import PathNotFound

    try:
        client.stat(place.path)
    except PathNotFound as error:
        raise DirectoryNotFound(str(error)) from error
    return client.walk(place.path) if recursive else client.ls(place.path)


def _print_entries(
    output: Output, entries: Iterable[FileStat], long: bool, whole_paths: bool, human: bool | None
) -> None:
    for entry in entries:
        if output.json:
            output.record(entry_record(entry))
            continue
        directory = entry.kind == "directory"
        path = entry.path if whole_paths else entry.path.rpartition("/")[2]
        name = output.name(path, directory) + ("/" if directory else "")
        output.line(_details(output, entry, human) + name if long else name)


def _details(output: Output, entry: FileStat, human: bool | None) -> str:
    size = "-" if entry.kind == "directory" else output.size(entry.size, human)
    return f"{permissions(entry)}  {size:>12}  {local_time(entry.mtime_ns)}  "


@dataclass(slots=True)
class _Counts:
    files: int = 0
    directories: int = 0
    bytes: int = field(default=0)

    def add(self, entry: FileStat) -> None:
        if entry.kind == "directory":
            self.directories += 1
        else:
            self.files += 1
            self.bytes += entry.size


def _print_counts(output: Output, entries: Iterable[FileStat], human: bool | None) -> None:
    counts = _Counts()
    for entry in entries:
        counts.add(entry)
    if output.json:
        output.record(
            {"files": counts.files, "directories": counts.directories, "bytes": counts.bytes}
        )
    else:
        output.line(
            f"{counted(counts.files, 'file')}, {counted(counts.directories, 'directory')}, "
            f"{output.size(counts.bytes, human)}"
        )

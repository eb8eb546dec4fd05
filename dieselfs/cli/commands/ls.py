"""`dlcmd ls`: list a directory, or the datasets if no address is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkstore.chunk_id import ChunkId
from dieselfs.cli.command import command, filter_options, human_option, recursive_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import entry_record, local_time, permissions
from dieselfs.cli.rendering.output import Output, counted, picked
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.dataset.path_filter import PathFilter
from dieselfs.errors import DirectoryNotFound, UsageError

if TYPE_CHECKING:
    from chunkstore.ssd.segment_index import CachedChunk
    from dieselfs.cache.ssd.usage import Share
    from dieselfs.client import Client
    from dieselfs.dataset.file_stat import FileStat

_SORT_KEYS: dict[str, Callable[[FileStat], Any]] = {
    "name": lambda entry: entry.path,
    "size": lambda entry: -entry.size,
    "time": lambda entry: -entry.mtime_ns,
}


@command(
    examples=[
        "dlcmd ls",
        "dlcmd ls imagenet:train -lH",
        "dlcmd ls dl://imagenet --recursive --include '*.jpg' --count-only",
        "dlcmd ls imagenet:train --sort size --limit 10 --json",
        "dlcmd ls imagenet:train --cached",
        "dlcmd ls imagenet -r --cached --count-only",
    ]
)
@click.argument("address", required=False)
@click.option("-l", "--long", is_flag=True, help="Show mode, size and time as well.")
@recursive_option("List everything below, with whole paths.")
@human_option
@filter_options
@click.option("--count-only", is_flag=True, help="Print only how many there are, and their size.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N entries.")
@click.option(
    "--sort",
    type=click.Choice(list(_SORT_KEYS)),
    help="Sort by name, or with the largest or the newest first. All is read before it is printed.",
)
@click.option(
    "--cached",
    is_flag=True,
    help="Show how much of each file's chunk is on the SSD (all, part, none), and if it is "
    "in node memory.",
)
@click.option(
    "--ssd",
    metavar="FOLDER",
    help="With --cached: folder of the SSD tier (default: as configured).",
)
def ls(
    context: CommandContext,
    address: str | None,
    long: bool,
    recursive: bool,
    human: bool | None,
    filters: PathFilter,
    count_only: bool,
    limit: int | None,
    sort: str | None,
    cached: bool,
    ssd: str | None,
) -> int:
    """List a directory of a dataset; a file lists itself. Without ADDRESS, list the datasets.

    The datasets are those of the store, whatever the index knows.
    """
    if address is None and cached:
        raise UsageError("--cached is of one dataset's files", "`dlcmd cache ls` lists datasets")
    if ssd is not None and not cached:
        raise UsageError("--ssd names the SSD of --cached", "add --cached, or leave --ssd out")
    if address is None:
        if recursive or count_only or limit is not None or sort or filters:
            raise UsageError(
                "--recursive, --count-only, --limit, --sort and filters are for the files of a "
                "dataset",
                "name one, or leave them out",
            )
        from dieselfs.cli.commands.dataset import print_datasets

        return print_datasets(context, human)
    place = parse_address(address)
    if cached:
        context = context.shared(place.dataset)
    with context.client(place) as client:
        entries: Iterable[FileStat] = (
            e for e in listed(client, place, recursive) if filters.takes(e.path)
        )
        if sort:
            entries = sorted(entries, key=_SORT_KEYS[sort])
        entries = itertools.islice(entries, limit)
        where = _cached(context, client, ssd) if cached else None
        if count_only:
            _print_counts(context.output, entries, human, where)
        else:
            _print_entries(context.output, client, entries, long, recursive, human, where)
    return 0


def listed(client: Client, place: DatasetAddress, recursive: bool) -> Iterable[FileStat]:
    """Return the children of a directory, or all entries below it.

    Raises `DirectoryNotFound` if the directory is missing.
    """
    from metadata.errors import PathNotFound

    try:
        client.stat(place.path)
    except PathNotFound as error:
        raise DirectoryNotFound(str(error)) from error
    return client.walk(place.path) if recursive else client.ls(place.path)


@dataclass(frozen=True, slots=True)
class _Cached:
    """The chunks of a dataset that this node has cached, by chunk id."""

    on_ssd: Mapping[bytes, CachedChunk]
    in_memory: Container[bytes]

    def record(self, entry: FileStat) -> dict[str, Any]:
        """Return the fields of --cached for a file; none for a directory."""
        from dieselfs.cache.ssd.usage import share_of

        if entry.kind == "directory" or not entry.chunk:
            return {}
        chunk = ChunkId.parse(entry.chunk).value
        return {"ssd": share_of(chunk, self.on_ssd), "memory": chunk in self.in_memory}

    def columns(self, entry: FileStat) -> str:
        """Return the columns of --cached for a file or directory."""
        found = self.record(entry)
        memory = "memory" if found.get("memory") else "-"
        return f"{found.get('ssd', '-'):<4}  {memory:<6}  "


def _cached(context: CommandContext, client: Client, ssd: str | None) -> _Cached:
    from dieselfs.cache.ssd.usage import TierAccess, chunks_in_memory
    from dieselfs.cli.arguments.ssd_flags import chosen_ssd

    dataset = client.dataset.ref
    cached = TierAccess(chosen_ssd(context, ssd, None, only_looks=True)).cached(dataset.id)
    return _Cached(cached, chunks_in_memory(dataset))


def _print_entries(
    output: Output,
    client: Client,
    entries: Iterable[FileStat],
    long: bool,
    whole_paths: bool,
    human: bool | None,
    cached: _Cached | None,
) -> None:
    for entry in entries:
        target = client.readlink(entry.path) if long and entry.kind == "link" else None
        if output.json:
            record = entry_record(entry) | (cached.record(entry) if cached else {})
            output.record(record if target is None else record | {"target": target})
            continue
        directory = entry.kind == "directory"
        path = entry.path if whole_paths else entry.path.rpartition("/")[2]
        name = output.name(path, directory) + ("/" if directory else "")
        if target is not None:
            name += f" -> {output.name(target)}"
        near = cached.columns(entry) if cached else ""
        output.line(near + (_details(output, entry, human) + name if long else name))


def _details(output: Output, entry: FileStat, human: bool | None) -> str:
    size = "-" if entry.kind == "directory" else output.size(entry.size, human)
    return f"{permissions(entry)}  {size:>12}  {local_time(entry.mtime_ns)}  "


@dataclass(slots=True)
class _Counts:
    files: int = 0
    directories: int = 0
    bytes: int = 0
    on_ssd: dict[Share, int] = field(default_factory=lambda: {"all": 0, "part": 0, "none": 0})
    in_memory: int = 0

    def add(self, entry: FileStat, cached: _Cached | None) -> None:
        """Count one entry."""
        if entry.kind == "directory":
            self.directories += 1
        else:
            self.files += 1
            self.bytes += entry.size
            if cached is not None and (found := cached.record(entry)):
                self.on_ssd[found["ssd"]] += 1
                self.in_memory += found["memory"]


def _print_counts(
    output: Output, entries: Iterable[FileStat], human: bool | None, cached: _Cached | None
) -> None:
    counts = _Counts()
    for entry in entries:
        counts.add(entry, cached)
    record = picked(counts, "files directories bytes")
    lines = [
        f"{counted(counts.files, 'file')}, {counted(counts.directories, 'directory')}, "
        f"{output.size(counts.bytes, human)}"
    ]
    if cached is not None:
        record |= {"ssd": counts.on_ssd, "memory": counts.in_memory}
        shares = ", ".join(f"{number:,} {share}" for share, number in counts.on_ssd.items())
        lines.append(f"on the SSD: {shares}; in memory: {counts.in_memory:,}")
    output.result(record, *lines)

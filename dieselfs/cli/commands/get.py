"""`dlcmd get`: copy a file or a directory out of a dataset."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import (
    command,
    dry_run_option,
    filter_options,
    jobs_option,
    recursive_option,
)
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.extraction import Copy, Extraction
from dieselfs.cli.local_folder import LocalFolder
from dieselfs.cli.rendering.exit_codes import ExitCode, explain
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.dataset.path_filter import PathFilter
from dieselfs.errors import LocalFileError, UsageError

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.dataset.file_stat import FileStat


@command(
    examples=[
        "dlcmd get imagenet:labels.txt",
        "dlcmd get imagenet:train/n01440764 ./images       # makes ./images/n01440764",
        "dlcmd get imagenet:train/n01440764/ ./images      # its contents, into ./images",
        "dlcmd get imagenet ./imagenet -j 8 --exclude '*.xml'",
        "dlcmd get imagenet:a.tar - | tar -xi              # as `dlcmd cat`",
    ]
)
@click.argument("source", metavar="ADDRESS")
@click.argument("local", default=".")
@recursive_option()
@filter_options
@dry_run_option
@jobs_option()
@click.option(
    "-I",
    "--ignore-times",
    is_flag=True,
    help="Also copy files that exist with the same size and mtime.",
)
def get(
    context: CommandContext,
    source: str,
    local: str,
    recursive: bool,
    filters: PathFilter,
    dry_run: bool,
    jobs: int | None,
    ignore_times: bool,
) -> int:
    """Copy a file, a directory or a whole dataset to a local folder, with modes and mtimes.

    With a slash at the end, ADDRESS means the contents of the directory. Files that exist with the
    same size and mtime are skipped, so the same command resumes an interrupted copy. Nothing
    outside LOCAL is written, and symbolic links are not followed. Those of the dataset are made
    again, except any that may lead out of LOCAL. With - as LOCAL, a file goes to standard output.
    """
    address = parse_address(source)
    if local == "-" and dry_run:
        raise UsageError("--dry-run lists files, and - is standard output", "leave one of them out")
    if local == "-":
        from dieselfs.cli.commands.cat import write_files

        return write_files(context, [source])
    with context.client(address) as client:
        plan = _plan(client, address, Path(local), filters)
        if dry_run:
            return _print_plan(context, address, client, plan)
        with _terminated_as_interrupted():
            return _extract(
                context, address, client, plan, jobs or min(8, os.cpu_count() or 1), ignore_times
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """The part of a dataset to copy, and the folder that it goes to."""

    entry: FileStat
    folder: Path
    name: str
    """The entry's name in the folder; empty if its contents go into the folder itself."""
    filters: PathFilter

    def copies(self, client: Client) -> Iterator[Copy]:
        """Yield every file and directory, parents first."""
        yield Copy(self.entry, self.name)
        if self.entry.kind == "directory":
            for found in self._taken(client.walk(self.entry.path)):
                yield Copy(found, self._target(found.path))

    def _taken(self, entries: Iterable[FileStat]) -> Iterator[FileStat]:
        """Yield the entries that the filters take, and all parents of these."""
        aside: dict[str, FileStat] = {}
        for entry in entries:
            if not self.filters.takes(entry.path):
                if entry.kind == "directory":
                    aside[entry.path] = entry
                continue
            if aside:
                yield from _claimed(aside, entry.path)
            yield entry

    def _target(self, path: str) -> str:
        below = path[len(self.entry.path) + 1 :] if self.entry.path else path
        return f"{self.name}/{below}" if self.name else below


def _claimed(aside: dict[str, FileStat], path: str) -> list[FileStat]:
    """Remove the parents of `path` from `aside`, and return them, topmost first."""
    above = []
    while path := path.rpartition("/")[0]:
        if path in aside:
            above.append(aside.pop(path))
    return above[::-1]


def _plan(client: Client, address: DatasetAddress, local: Path, filters: PathFilter) -> Plan:
    entry = client.stat(address.path)
    if entry.kind == "directory":
        return Plan(entry, local, "" if address.contents else address.name, filters)
    if address.contents:
        raise UsageError(f"{address} is a file", "leave out the slash at the end")
    if local.is_dir():
        return Plan(entry, local, address.name, filters)
    if not local.parent.is_dir():
        raise LocalFileError(f"{local.parent}: no such folder", f"make it: mkdir -p {local.parent}")
    return Plan(entry, local.parent, local.name, filters)


def _print_plan(
    context: CommandContext, address: DatasetAddress, client: Client, plan: Plan
) -> int:
    output = context.output
    for copy in plan.copies(client):
        target = os.path.join(plan.folder, copy.target)
        path, size = copy.entry.path, copy.entry.size
        output.result(
            {"action": "get", "path": path, "target": target, "size": size},
            f"{output.name(str(address.at(path)))} -> {output.name(target)}",
        )
    return ExitCode.OK


def _extract(
    context: CommandContext,
    address: DatasetAddress,
    client: Client,
    plan: Plan,
    jobs: int,
    ignore_times: bool,
) -> int:
    with closing(LocalFolder(plan.folder)) as folder, context.progress("get") as progress:
        extraction = Extraction(
            folder,
            open_client=lambda: _sibling(context, address, client),
            on_failure=lambda entry, error: _report(context, entry, error),
            progress=progress,
            jobs=jobs,
            ignore_times=ignore_times,
        )
        is_whole = plan.entry.kind == "directory" and not address.path and not address.snapshot
        if is_whole and not plan.filters:
            state = client.dataset.namespace.state()
            progress.expect(state.files, state.bytes)
        extraction.run(plan.copies(client))
    _print_summary(context, plan, extraction)
    if extraction.failed:
        return ExitCode.PARTIAL if extraction.files + extraction.skipped else ExitCode.INTEGRITY
    return ExitCode.PARTIAL if extraction.outside else ExitCode.OK


def _sibling(context: CommandContext, address: DatasetAddress, client: Client) -> Client:
    """Open a client of the same dataset for another thread; a client is for one at a time."""
    from dieselfs.client import Client

    sibling = Client(client.dataset, context.snapshot_folder, ssd=client.ssd)
    context.load_snapshot(sibling, address)
    return sibling


def _report(context: CommandContext, entry: FileStat, error: Exception) -> None:
    from dataclasses import replace

    from dieselfs.cli.rendering.exit_codes import report

    failure = explain(error)
    report(replace(failure, what=f"{entry.path}: {failure.what}"), as_json=context.output.json)


def _print_summary(context: CommandContext, plan: Plan, done: Extraction) -> None:
    counts = picked(done, "files bytes skipped failed outside")
    others = "".join(f", {counts[key]:,} {key}" for key in ("skipped", "failed") if counts[key])
    if done.outside:
        others += f", {counted(done.outside, 'symbolic link')} left out"
    context.output.done(
        {**counts, "folder": str(plan.folder)},
        f"got {counted(done.files, 'file')}, {human_size(done.bytes)}{others}, in {plan.folder}",
    )


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that temporary files are removed."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

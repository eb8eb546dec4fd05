"""`dlcmd get`: copy a file or a directory out of a dataset."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
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
from dieselfs.cli.rendering.exit_codes import ExitCode, explain
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.cli.values.sizes import human_size
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.dataset.path_filter import PathFilter
from dieselfs.errors import LocalFileError, UsageError

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.client.extraction.copies import CopyPlan
    from dieselfs.client.extraction.extraction import Extraction
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
    if local == "-" and (filters or ignore_times):
        raise UsageError(
            "filters and --ignore-times are for folders, and - is standard output",
            "leave them out",
        )
    if local == "-":
        from dieselfs.cli.commands.cat import write_files

        return write_files(context, [source])
    with context.client(address) as client:
        plan = _plan(client, address, local, filters)
        if dry_run:
            return _print_plan(context, address, client, plan)
        with _terminated_as_interrupted():
            return _extract(context, address, client, plan, jobs, ignore_times)


def _plan(client: Client, address: DatasetAddress, where: str, filters: PathFilter) -> CopyPlan:
    from dieselfs.client.extraction.copies import CopyPlan

    entry, local = client.stat(address.path), Path(where)
    if entry.kind == "directory":
        return CopyPlan(entry, local, "" if address.contents else address.name, filters)
    if address.contents:
        raise UsageError(f"{address} is a file", "leave out the slash at the end")
    if local.is_dir():
        return CopyPlan(entry, local, address.name, filters)
    folder = local if where.endswith("/") else local.parent
    if not folder.is_dir():
        there = os.path.lexists(folder)
        raise LocalFileError(
            f"{folder}: not a folder" if there else f"{folder}: no such folder",
            "choose another one" if there else f"make it: mkdir -p {quote(str(folder))}",
        )
    return CopyPlan(entry, local.parent, local.name, filters)


def _print_plan(
    context: CommandContext, address: DatasetAddress, client: Client, plan: CopyPlan
) -> int:
    output = context.output
    for copy in plan.copies(client.walk):
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
    plan: CopyPlan,
    jobs: int | None,
    ignore_times: bool,
) -> int:
    from dieselfs.client.extraction.extraction import extract

    with context.progress("get") as progress:
        is_whole = plan.entry.kind == "directory" and not address.path and not address.snapshot
        if is_whole and not plan.filters:
            state = client.dataset.namespace.state()
            progress.expect(state.files, state.bytes)
        done = extract(
            client,
            plan,
            on_failure=lambda entry, error: _report(context, entry, error),
            jobs=jobs,
            ignore_times=ignore_times,
            progress=progress,
        )
    _print_summary(context, plan, done)
    if done.failed:
        return ExitCode.PARTIAL if done.files + done.skipped else ExitCode.INTEGRITY
    return ExitCode.PARTIAL if done.outside else ExitCode.OK


def _report(context: CommandContext, entry: FileStat, error: Exception) -> None:
    from dataclasses import replace

    from dieselfs.cli.rendering.exit_codes import report

    failure = explain(error)
    report(replace(failure, what=f"{entry.path}: {failure.what}"), as_json=context.output.json)


def _print_summary(context: CommandContext, plan: CopyPlan, done: Extraction) -> None:
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

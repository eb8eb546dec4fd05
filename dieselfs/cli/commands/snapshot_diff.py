"""`dlcmd snapshot diff`: what changed from one snapshot to another."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.arguments.snapshot_files import local_file
from dieselfs.cli.command import command, human_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import iso_time
from dieselfs.cli.rendering.output import Output, counted
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.snapshots.snapshot_diff import Change
    from metadata.snapshot import Snapshot

_LETTERS: Final = {"added": "A", "removed": "D", "changed": "M", "attributes": "T"}


@command(
    name="diff",
    examples=[
        "dlcmd snapshot diff imagenet@v1 imagenet@v2",
        "dlcmd snapshot diff imagenet@12 imagenet --stat",
        "dlcmd snapshot diff ./imagenet-12.snapshot imagenet@13 --json",
    ],
)
@click.argument("before", metavar="DATASET[@ID]|FILE")
@click.argument("after", metavar="DATASET[@ID]|FILE")
@click.option("--stat", "totals", is_flag=True, help="Print only counts and bytes.")
@human_option
def diff_command(
    context: CommandContext, before: str, after: str, totals: bool, human: bool | None
) -> None:
    """Show what changed from one snapshot to another.

    The letters mean: A added, D removed, M other content, T other mode or time. Content is compared
    by hash and length. Without ID, an argument means the newest snapshot known.
    """
    from dieselfs.snapshots.snapshot_diff import diff
    from metadata.snapshot import Snapshot

    output = context.output
    paths = local_file(context, before), local_file(context, after)
    with Snapshot.open(paths[0]) as old, Snapshot.open(paths[1]) as new:
        if old.dataset.id != new.dataset.id:
            raise UsageError(
                f"{before} and {after} are snapshots of different datasets",
                "name two of one dataset; one that was removed and made again is another",
            )
        changes = diff(old, new)
        if totals:
            _print_totals(output, changes, old, new, human)
        else:
            for change in changes:
                _print_change(output, change, old, new)


def _print_change(output: Output, change: Change, old: Snapshot, new: Snapshot) -> None:
    path = os.fsdecode(change.path)
    if output.json:
        output.record(
            {
                "change": str(change.kind),
                "path": path,
                "kind": "directory" if change.is_directory else "file",
                "before": _attributes(old, change.before),
                "after": _attributes(new, change.after),
            }
        )
    else:
        shown = f"{path}/" if change.is_directory else path
        output.line(f"{_LETTERS[change.kind]} {output.name(shown, directory=change.is_directory)}")


def _attributes(snapshot: Snapshot, inode: int | None) -> dict[str, Any] | None:
    if inode is None:
        return None
    record: dict[str, Any] = {
        "mode": f"{stat.S_IMODE(snapshot.mode(inode)):04o}",
        "mtime": iso_time(snapshot.mtime_ns(inode)),
    }
    if not snapshot.is_directory(inode):
        record |= {"size": snapshot.size(inode), "xxh3": f"{snapshot.extent(inode).hash:016x}"}
    return record


def _print_totals(
    output: Output, changes: Iterable[Change], old: Snapshot, new: Snapshot, human: bool | None
) -> None:
    files, directories = dict.fromkeys(_LETTERS, 0), dict.fromkeys(_LETTERS, 0)
    size_bytes = dict.fromkeys(_LETTERS, 0)
    for change in changes:
        if change.is_directory:
            directories[change.kind] += 1
        else:
            files[change.kind] += 1
            snapshot, inode = (
                (new, change.after) if change.after is not None else (old, change.before)
            )
            size_bytes[change.kind] += snapshot.size(inode) if inode is not None else 0
    if output.json:
        output.record(
            {
                kind: {
                    "files": files[kind],
                    "directories": directories[kind],
                    "bytes": size_bytes[kind],
                }
                for kind in _LETTERS
            }
        )
        return
    rows = [
        [kind, str(files[kind]), str(directories[kind]), output.size(size_bytes[kind], human)]
        for kind in _LETTERS
    ]
    output.table(["CHANGE", "FILES", "DIRECTORIES", "SIZE"], rows)
    total = sum(files.values()) + sum(directories.values())
    output.note(f"{counted(total, 'difference')} from {old.id} to {new.id}")

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
    if not output.json:
        shown = f"{path}/" if change.is_directory else path
        output.line(f"{_LETTERS[change.kind]} {output.name(shown, directory=change.is_directory)}")
        return
    shown_in, inode = (new, change.after) if change.after is not None else (old, change.before)
    is_link = inode is not None and shown_in.is_link(inode)
    kind = "directory" if change.is_directory else "link" if is_link else "file"
    before, after = _attributes(old, change.before), _attributes(new, change.after)
    record = {"change": str(change.kind), "path": path, "kind": kind}
    output.record({**record, "before": before, "after": after})


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
    totals = {kind: {"files": 0, "directories": 0, "bytes": 0} for kind in _LETTERS}
    for change in changes:
        of = totals[change.kind]
        if change.is_directory:
            of["directories"] += 1
            continue
        of["files"] += 1
        in_new = change.after is not None
        snapshot, inode = (new, change.after) if in_new else (old, change.before)
        of["bytes"] += snapshot.size(inode) if inode is not None else 0
    rows = [
        [kind, str(of["files"]), str(of["directories"]), output.size(of["bytes"], human)]
        for kind, of in totals.items()
    ]
    output.listing(["CHANGE", "FILES", "DIRECTORIES", "SIZE"], rows, [totals])
    if not output.json:
        total = sum(of["files"] + of["directories"] for of in totals.values())
        output.note(f"{counted(total, 'difference')} from {old.id} to {new.id}")

"""`dlcmd snapshot rm` and `prune`: delete snapshots on this machine and in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dieselfs.cli.arguments.snapshot_files import named
from dieselfs.cli.command import command, dry_run_option, human_option, yes_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import iso_time
from dieselfs.cli.rendering.output import counted, picked
from dieselfs.cli.values.durations import Duration
from dieselfs.dataset.address import parse_dataset
from dieselfs.errors import Refused, SnapshotNotFound, UsageError

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.snapshots.snapshot_pruning import SnapshotVersion, SnapshotVersions


@command(
    name="rm",
    examples=["dlcmd snapshot rm imagenet@12", "dlcmd snapshot rm imagenet@12-8d3f01 --yes"],
)
@click.argument("which", metavar="DATASET@ID")
@click.option("--force", is_flag=True, help="Delete it even if a running mount serves it.")
@yes_option
def rm_command(context: CommandContext, which: str, force: bool, yes: bool) -> None:
    """Delete a snapshot, on this machine and in the store.

    A snapshot that is tagged, or that a running mount serves, is refused. Its chunks are deleted
    later, by `dlcmd purge` or `dlcmd gc`, if nothing else needs them.
    """
    from dieselfs.snapshots.lifecycle import is_called
    from dieselfs.snapshots.snapshot_pruning import check_free, delete_snapshots
    from dieselfs.snapshots.tagging import resolved

    name, wanted = named(which)
    store, folder = context.store(), context.snapshot_folder
    versions = _versions(context, store, name)
    snapshot_id = resolved(wanted, name, store)
    matching = [v for v in versions.versions if is_called(v.snapshot_id, snapshot_id)]
    if len(matching) > 1:
        raise UsageError(
            f"{which} means {counted(len(matching), 'snapshot')}",
            f"write one of {', '.join(v.snapshot_id for v in matching)}",
        )
    if not matching:
        raise SnapshotNotFound(f"there is no snapshot {which}", f"see `dlcmd snapshot ls {name}`")
    check_free(versions, matching[0], force=force)
    confirm(f"delete snapshot {matching[0].snapshot_id} of {name}", yes=yes)
    deleted = delete_snapshots(
        store, versions.dataset, folder, matching, now_ns=time.time_ns(), force=force
    )
    _print_deleted(context, name, deleted)


@command(
    name="prune",
    examples=[
        "dlcmd snapshot prune imagenet --keep-last 5 -n",
        "dlcmd snapshot prune imagenet --keep-last 3 --keep-within 30d --yes",
    ],
)
@click.argument("dataset")
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the newest N.")
@click.option(
    "--keep-within",
    type=Duration(),
    metavar="TIME",
    help="Keep snapshots that are younger than this, such as 30d.",
)
@dry_run_option
@yes_option
@human_option
def prune_command(
    context: CommandContext,
    dataset: str,
    keep_last: int | None,
    keep_within: float | None,
    dry_run: bool,
    yes: bool,
    human: bool | None,
) -> None:
    """Delete the snapshots that no rule keeps, here and in the store.

    The newest snapshot, tagged ones and those that a running mount serves always stay. A snapshot
    is as old as the last commit before it.
    """
    from dieselfs.snapshots.snapshot_pruning import delete_snapshots, prunable

    if keep_last is None and keep_within is None:
        raise UsageError(
            "no snapshots are named to be kept", "give --keep-last, --keep-within or both"
        )
    name = parse_dataset(dataset)
    store = context.store()
    versions = _versions(context, store, name)
    if versions.unreadable:
        raise Refused(
            f"cannot tell which snapshots of {name} are in use: {'; '.join(versions.unreadable)}",
            f"set or remove an unreadable tag again; for leases see `dlcmd gc {name}`",
        )
    now_ns = time.time_ns()
    chosen = prunable(
        versions.versions, keep_last=keep_last, keep_within_s=keep_within, now_ns=now_ns
    )
    if dry_run:
        _print_plan(context, versions, chosen, human)
        return
    if not chosen:
        context.output.note(f"nothing to delete: all snapshots of {name} are kept")
        return
    confirm(f"delete {counted(len(chosen), 'snapshot')} of {name}", yes=yes)
    folder = context.snapshot_folder
    _print_deleted(
        context, name, delete_snapshots(store, versions.dataset, folder, chosen, now_ns=now_ns)
    )


def _versions(context: CommandContext, store: ObjectStore, name: str) -> SnapshotVersions:
    from dieselfs.dataset.dataset import existing_dataset
    from dieselfs.snapshots.snapshot_pruning import list_versions

    ref = existing_dataset(store, name)
    return list_versions(store, ref, context.snapshot_folder, time.time_ns())


def _print_plan(
    context: CommandContext,
    versions: SnapshotVersions,
    chosen: Sequence[SnapshotVersion],
    human: bool | None,
) -> None:
    output = context.output
    actions = [(v, "delete" if v in chosen else "keep") for v in versions.versions]
    rows = [
        [
            *(action, output.snapshot_id(v.snapshot_id), output.size(v.size_bytes, human)),
            "damaged" if v.time_ns is None else output.time(v.time_ns),
            ", ".join([*v.tags, *(["mounted"] if v.leased else [])]),
        ]
        for v, action in actions
    ]
    records = [_record(v) | {"action": action} for v, action in actions]
    output.listing(["", "ID", "SIZE", "TIME", "KEPT BY"], rows, records)


def _print_deleted(context: CommandContext, name: str, deleted: Sequence[SnapshotVersion]) -> None:
    for version in deleted:
        context.output.result(_record(version) | {"action": "deleted"}, version.snapshot_id)
    if not context.output.json:
        context.output.note(f"deleted {counted(len(deleted), 'snapshot')} of {name}")


def _record(version: SnapshotVersion) -> dict[str, Any]:
    return {
        "id": version.snapshot_id,
        "generation": version.generation,
        "bytes": version.size_bytes,
        "time": None if version.time_ns is None else iso_time(version.time_ns),
        "file": None if version.file is None else str(version.file),
        **picked(version, "published tags leased"),
    }

"""`dlcmd snapshot tag` and `untag`: names for snapshots."""

from __future__ import annotations

import click

from dieselfs.cli.arguments.snapshot_files import without_path
from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.dataset.address import parse_dataset


@command(
    name="tag",
    examples=["dlcmd snapshot tag imagenet v1", "dlcmd snapshot tag imagenet@12 before-cleaning"],
)
@click.argument("which", metavar="DATASET[@ID]")
@click.argument("tag")
def tag_command(context: CommandContext, which: str, tag: str) -> None:
    """Give a snapshot a name, which can be used wherever an ID can.

    Without ID, the command tags the newest snapshot, which must be as new as the dataset. An
    existing tag is moved. A tagged snapshot is neither pruned nor removed, and its chunks stay.
    """
    from dieselfs.snapshots.tagging import tag_snapshot

    address = without_path(which)
    folder = context.snapshot_folder
    made = tag_snapshot(context.store(), address.dataset, address.snapshot, tag, folder)
    context.output.done(
        {"dataset": address.dataset, "tag": made.name, "id": made.snapshot_id},
        f"{address.dataset}@{made.name} is snapshot {made.snapshot_id}",
    )


@command(name="untag", examples=["dlcmd snapshot untag imagenet v1"])
@click.argument("dataset")
@click.argument("tag")
def untag_command(context: CommandContext, dataset: str, tag: str) -> None:
    """Remove a tag, even one that can't be read.

    The snapshot stays until it is pruned.
    """
    from dieselfs.snapshots.tagging import untag_snapshot

    name = parse_dataset(dataset)
    untag_snapshot(context.store(), name, tag)
    context.output.done(
        {"dataset": name, "tag": tag, "removed": True}, f"removed tag {tag} of {name}"
    )

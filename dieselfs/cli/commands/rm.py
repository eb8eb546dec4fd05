"""`dlcmd rm`: delete files and directories of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import (
    command,
    delete_limit_option,
    dry_run_option,
    publish_option,
    recursive_option,
    yes_option,
)
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.confirmation import confirm
from dieselfs.cli.rendering.entries import for_each
from dieselfs.cli.rendering.output import counted, printable
from dieselfs.dataset.address import DatasetAddress, parse_address
from dieselfs.errors import DieselFSError, Refused, UsageError

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.dataset.file_stat import FileStat


@command(
    examples=[
        "dlcmd rm imagenet:train/broken.jpg",
        "dlcmd rm -r -n imagenet:train/n01440764",
        "dlcmd rm -r --yes --max-delete 2000 imagenet:train/n01440764",
    ]
)
@click.argument("addresses", nargs=-1, required=True)
@recursive_option("Delete directories with all below them.")
@dry_run_option
@yes_option
@delete_limit_option("Refuse to delete more than N files.")
@publish_option
def rm(
    context: CommandContext,
    addresses: tuple[str, ...],
    recursive: bool,
    dry_run: bool,
    yes: bool,
    max_delete: int | None,
    publish: bool,
) -> int:
    """Delete files or, with -r, directories of a dataset.

    Earlier snapshots keep what is deleted. At the end the command publishes a snapshot of each
    dataset, as `dlcmd put` does. Use `dlcmd dataset rm` to remove a whole dataset.
    """
    changed: dict[str, DatasetAddress] = {}
    if max_delete is not None:
        _check_limit(context, addresses, max_delete)

    def delete(text: str) -> None:
        address = _checked(parse_address(text))
        with context.client(address) as client:
            entry = client.stat(address.path)
            if entry.kind == "directory" and not recursive:
                raise UsageError(
                    f"{address} is a directory", "add -r to delete it with all below it"
                )
            if dry_run:
                _print_plan(context, client, address, entry)
                return
            count = sum(1 for _ in _files(client, entry))
            confirm(f"delete {address} ({counted(count, 'file')})", yes=yes)
            deleted = client.delete_tree(address.path)
            client.flush()
        changed[address.dataset] = address
        context.output.done(
            {"dataset": address.dataset, "path": address.path, "deleted": deleted},
            f"deleted {address} ({counted(deleted, 'file')})",
        )

    code = for_each(addresses, delete, as_json=context.output.json)
    for address in changed.values() if publish else ():
        _publish(context, address)
    return code


def _publish(context: CommandContext, address: DatasetAddress) -> None:
    """Publish a snapshot of the dataset; a failure is noted, and what was deleted stays deleted."""
    from chunkstore.errors import ChunkStoreError
    from dieselfs.snapshots.put_snapshots import publish_put
    from metadata.errors import MetadataError

    dataset, error = address.dataset, ""
    try:
        with context.client(address) as client:
            shown = publish_put(client.dataset, context.snapshot_folder).snapshot_id
    except (ChunkStoreError, MetadataError, DieselFSError, OSError) as failure:
        shown, error = "", str(failure) or type(failure).__name__
    record = {"dataset": dataset, "snapshot": shown or None, "snapshot_error": error or None}
    context.output.done(
        record,
        f"snapshot {shown.partition('-')[0]} of {dataset} published"
        if shown
        else f"the files are deleted, but no snapshot was published: {printable(error)}; mounts "
        f"without an index show the older one: run `dlcmd snapshot create {dataset}`",
    )


def _checked(address: DatasetAddress) -> DatasetAddress:
    if address.snapshot:
        raise UsageError(
            f"{address}: snapshots do not change", f"write {address.dataset}:{address.path}"
        )
    if not address.path:
        raise UsageError(
            f"{address} is a whole dataset", f"use `dlcmd dataset rm {address.dataset}`"
        )
    return address


def _files(client: Client, entry: FileStat) -> Iterator[FileStat]:
    return (found for found in client.walk(entry.path) if found.kind != "directory")


def _check_limit(context: CommandContext, addresses: Sequence[str], limit: int) -> None:
    """Raise `Refused` if the addresses hold more files than that, all together.

    An address that does not exist counts as none; its deletion says so.
    """
    from metadata.errors import DatasetNotFound, PathNotFound

    count = 0
    for text in addresses:
        address = _checked(parse_address(text))
        with suppress(DatasetNotFound, PathNotFound), context.client(address) as client:
            count += sum(1 for _ in _files(client, client.stat(address.path)))
    if count > limit:
        what = addresses[0] if len(addresses) == 1 else f"the {len(addresses):,} addresses"
        verb = "holds" if len(addresses) == 1 else "hold"
        raise Refused(
            f"{what} {verb} {counted(count, 'file')}, --max-delete allows {limit:,}",
            "nothing was deleted",
        )


def _print_plan(
    context: CommandContext, client: Client, address: DatasetAddress, entry: FileStat
) -> None:
    for found in _files(client, entry):
        context.output.result(
            {"action": "delete", "dataset": address.dataset, "path": found.path},
            f"would delete {context.output.name(str(address.at(found.path)))}",
        )

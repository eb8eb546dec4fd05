"""`dlcmd stat`: show the metadata of files and directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command, human_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import entry_record, for_each, iso_time, permissions
from dieselfs.cli.rendering.output import Output
from dieselfs.dataset.address import DatasetAddress, parse_address

if TYPE_CHECKING:
    from dieselfs.dataset.file_stat import FileStat


@command(
    examples=[
        "dlcmd stat imagenet:train/n01440764/n01440764_10026.JPEG",
        "dlcmd stat --json imagenet:train",
    ]
)
@click.argument("addresses", nargs=-1, required=True)
@human_option
def stat(context: CommandContext, addresses: tuple[str, ...], human: bool | None) -> int:
    """Show the metadata of files or directories: size, times, and where the bytes are."""

    def show(text: str) -> None:
        address = parse_address(text)
        with context.client(address) as client:
            entry = client.stat(address.path)
            committed_ns = client.committed_ns(entry.generation) if entry.generation else None
            target = client.readlink(address.path) if entry.kind == "link" else None
            _print(context.output, address, entry, target, committed_ns, human)

    return for_each(addresses, show, as_json=context.output.json)


def _print(
    output: Output,
    address: DatasetAddress,
    entry: FileStat,
    target: str | None,
    committed_ns: int | None,
    human: bool | None,
) -> None:
    committed = None if committed_ns is None else iso_time(committed_ns)
    fields = {
        "address": output.name(str(address.at(entry.path))),
        "kind": entry.kind,
        "mode": permissions(entry),
        "modified": iso_time(entry.mtime_ns),
    }
    if target is not None:
        fields["target"] = output.name(target)
    if entry.kind != "directory":
        fields |= {
            "size": output.size(entry.size, human),
            "chunk": entry.chunk or "-",
            "offset": str(entry.offset),
            "xxh3": f"{entry.hash:016x}",
        }
    if entry.generation:
        fields["generation"] = str(entry.generation)
    if committed is not None:
        fields["committed"] = committed
    record = {"dataset": address.dataset} | entry_record(entry) | {"committed": committed}
    if target is not None:
        record["target"] = target
    output.details(record, fields)

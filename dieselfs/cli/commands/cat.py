"""`dlcmd cat`: write files to standard output, byte for byte."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import for_each
from dieselfs.cli.rendering.standard_streams import written_to_stdout
from dieselfs.dataset.address import parse_address
from dieselfs.errors import UsageError
from metadata.errors import PathConflict, PathIsLink


@command(
    examples=["dlcmd cat imagenet:labels.txt", "dlcmd cat imagenet:a.tar imagenet:b.tar | tar -xi"]
)
@click.argument("addresses", nargs=-1, required=True)
def cat(context: CommandContext, addresses: tuple[str, ...]) -> int:
    """Write files to standard output, one after the other."""
    return write_files(context, addresses)


def write_files(context: CommandContext, addresses: Sequence[str]) -> int:
    """Write files to standard output, one after the other, and return the exit code."""

    def write(text: str) -> None:
        address = parse_address(text)
        with context.client(address) as client:
            try:
                with written_to_stdout():
                    client.read_to(address.path, sys.stdout.buffer)
            except PathIsLink:
                raise
            except PathConflict as error:
                raise UsageError(
                    f"{address} is a directory", "copy it with `dlcmd get ADDRESS FOLDER`"
                ) from error

    return for_each(addresses, write, as_json=context.output.json)

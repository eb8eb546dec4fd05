"""The table of `dlcmd`'s commands.

A command's module is imported when the command is used, so that `dlcmd --help` and shell completion
stay quick.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from dieselfs.cli.command import common_options
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.cli.values.completed import complete_by_name

# Command -> help in one line. The command's module has the same name.
COMMANDS: Final = {
    "put": "Pack files into a dataset.",
    "ls": "List a directory of a dataset.",
    "cat": "Write files to standard output.",
    "get": "Copy a file or a directory out of a dataset.",
    "rm": "Delete files or directories of a dataset.",
    "stat": "Show the metadata of a file or directory.",
    "du": "Add up file sizes by directory.",
    "mount": "Mount a dataset as a read-only file system.",
    "umount": "Unmount a dataset.",
    "mounts": "List the mounts of this machine.",
    "run": "Run a command that reads FUSE mounts faster.",
    "mountd": "Run the mount service for ordinary users, as root.",
    "stats": "Show the statistics of a mount.",
    "why": "Show where the bytes of a file lie, and why.",
    "jobs": "List what jobs read now, and how far they are.",
    "task": "Show the tasks of this node and their peers.",
    "serve": "Run a cache node, which serves chunks from an SSD.",
    "cluster": "Show the cache nodes of a cache cluster.",
    "warmup": "Load a dataset's chunks onto the SSD of this node.",
    "cache": "Show and limit what the SSD of this node caches.",
    "snapshot": "Create, list, tag, compare and prune snapshots.",
    "advise": "Say what an SSD tier would save.",
    "alloc": "Divide cache and remote IO among jobs.",
    "shuffle": "Print the files of an epoch in chunk-wise shuffled order.",
    "dataset": "List, describe and remove datasets.",
    "config": "Set and explain the settings that all nodes share.",
    "recover": "Rebuild the index from the object store alone.",
    "fsck": "Compare store, index and snapshots.",
    "scrub": "Read and verify every byte of a dataset.",
    "purge": "Merge chunks with holes and free their space.",
    "gc": "Find and delete garbage.",
    "completion": "Print the completion script of a shell.",
}
ALIASES: Final = {"del": "rm", "info": "stat", "unmount": "umount", "list": "ls", "ring": "cluster"}
"""Names that work but are not listed: habits from other tools, and former names for one release."""


def unknown_command(given: str, known: list[str], context: click.Context) -> click.UsageError:
    """Return the error for a command that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    near = get_close_matches(given, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"see `{context.command_path} --help`"
    return click.UsageError(f"no command {given!r}; {hint}", context)


class SuggestingGroup(click.Group):
    """A group that answers a typing error with the nearest command."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if (
            not name.startswith("-")
            and self.get_command(context, name) is None
            and not context.resilient_parsing
        ):
            raise unknown_command(name, self.known_names(context), context)
        return super().resolve_command(context, args)

    def known_names(self, context: click.Context) -> list[str]:
        """Return the names that a typing error is compared with."""
        return self.list_commands(context)


class LazyCommands(SuggestingGroup):
    """`dlcmd` itself, which imports a command when it is used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())
        for parameter in self.params:
            complete_by_name(self.name, parameter)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def known_names(self, context: click.Context) -> list[str]:
        return [*COMMANDS, *ALIASES]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"dieselfs.cli.commands.{name}")
        command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands: asking each command for its help would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Addresses"):
            formatter.write_dl(
                [
                    ("dl://DATASET/PATH", "a file or directory; DATASET:PATH for short"),
                    ("dl://DATASET@SNAPSHOT/PATH", "the same as it was in a snapshot"),
                ]
            )
        with formatter.section("Exit codes"):
            formatter.write_dl(
                [(str(int(code)), code.meaning) for code in ExitCode if code.meaning]
            )

"""`dlcmd umount`: end a mount."""

from __future__ import annotations

from pathlib import Path

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import for_each


@command(
    examples=["dlcmd umount /mnt/imagenet", "dlcmd umount --lazy /mnt/imagenet"],
    needs_config=False,
)
@click.argument("mountpoints", nargs=-1, required=True)
@click.option(
    "-l",
    "-z",
    "--lazy",
    is_flag=True,
    help="Detach now; the mount ends when its last user has gone.",
)
def umount(context: CommandContext, mountpoints: tuple[str, ...], lazy: bool) -> int:
    """Unmount a dataset, even if the daemon of the mount has died or does not answer.

    A mount that does not answer for 10 s is aborted: its readers get an error.
    """
    from dieselfs.fuse.mounts.unanswered import unmount_or_abort

    def end(mountpoint: str) -> None:
        problem = unmount_or_abort(Path(mountpoint), lazy)
        context.output.done(
            {"mountpoint": mountpoint, "mounted": False, "problem": problem},
            f"unmounted {mountpoint}" + (f": {problem}" if problem else ""),
        )

    return for_each(mountpoints, end, as_json=context.output.json)

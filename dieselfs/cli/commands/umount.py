"""`dlcmd umount`: end a mount."""

from __future__ import annotations

from pathlib import Path

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.entries import for_each


@command(examples=["dlcmd umount /mnt/imagenet", "dlcmd umount --lazy /mnt/imagenet"])
@click.argument("mountpoints", nargs=-1, required=True)
@click.option(
    "-l",
    "-z",
    "--lazy",
    is_flag=True,
    help="Detach now; the mount ends when its last user has gone.",
)
def umount(context: CommandContext, mountpoints: tuple[str, ...], lazy: bool) -> int:
    """Unmount a dataset, even if the daemon of the mount has died."""
    from dieselfs.fuse.mounts.mountpoint import unmount

    def end(mountpoint: str) -> None:
        unmount(Path(mountpoint), lazy)
        context.output.done({"mountpoint": mountpoint, "mounted": False}, f"unmounted {mountpoint}")

    return for_each(mountpoints, end, as_json=context.output.json)

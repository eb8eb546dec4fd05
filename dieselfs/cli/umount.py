"""`dlcmd umount`: end a mount."""

from __future__ import annotations

from pathlib import Path

import click

from dieselfs.cli.entries import for_each
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.verb import verb


@verb(examples=["dlcmd umount /mnt/imagenet", "dlcmd umount --lazy /mnt/imagenet"])
@click.argument("mountpoints", nargs=-1, required=True)
@click.option(
    "-l", "-z", "--lazy", is_flag=True, help="Detach now, end when the last user has gone."
)
def umount(invocation: Invocation, mountpoints: tuple[str, ...], lazy: bool) -> int:
    """Unmount; also a mount whose daemon has died."""
    from dieselfs.fuse.mountpoint import unmount

    def end(mountpoint: str) -> None:
        unmount(Path(mountpoint), lazy)
        if invocation.output.json:
            invocation.output.record({"mountpoint": mountpoint, "mounted": False})
        else:
            invocation.output.note(f"unmounted {mountpoint}")

    return for_each(mountpoints, end, as_json=invocation.output.json)

"""`dlcmd mounts`: what is mounted on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dieselfs.cli.invocation import CommandContext
from dieselfs.cli.verb import command

if TYPE_CHECKING:
    from dieselfs.fuse.mount_table import MountInfo


@command(examples=["dlcmd mounts", "dlcmd mounts --json | jq -r .mountpoint"])
def mounts(context: CommandContext) -> None:
    """List what is mounted on this machine: where, which snapshot, since when, and whether it answers."""
    from dieselfs.fuse.mount_table import mounts as mounted

    found = mounted()
    if context.output.json:
        for info in found:
            context.output.record(_record(info))
        return
    rows = [
        [
            os.fspath(info.mountpoint),
            _shown(info),
            str(info.state),
            _front(info),
            info.mounted or "-",
            str(info.pid or "-"),
        ]
        for info in found
    ]
    context.output.table(["MOUNTPOINT", "SNAPSHOT", "STATE", "FRONT", "SINCE", "PID"], rows)


def _shown(info: MountInfo) -> str:
    """What the mount says; the kernel's table knows what it began with."""
    if info.snapshot is None:
        return info.source.partition(":")[2]
    return f"{info.dataset}@{info.snapshot}"


def _front(info: MountInfo) -> str:
    """What the mount says, or else what the kernel knows of it."""
    told = (info.details.get("front") or {}).get("kind")
    return str(told or ("erofs" if info.is_erofs else "fuse"))


def _record(info: MountInfo) -> dict[str, object]:
    return {
        "mountpoint": os.fspath(info.mountpoint),
        "source": info.source,
        "state": str(info.state),
        "front": _front(info),
        "dataset": info.dataset,
        "generation": info.generation,
        "snapshot": info.snapshot,
        "mounted": info.mounted,
        "pid": info.pid,
    }

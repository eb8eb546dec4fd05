"""`dlcmd mounts`: list the mounts of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.output import Output, picked

if TYPE_CHECKING:
    from dieselfs.fuse.mounts.mount_table import MountInfo


@command(examples=["dlcmd mounts", "dlcmd mounts --json | jq -r .mountpoint"], needs_config=False)
def mounts(context: CommandContext) -> None:
    """List the mounts of this machine: place, snapshot, state, front, start and process.

    The state shows whether a mount answers.
    """
    from dieselfs.fuse.mounts.mount_table import mounts as mounted

    output, found = context.output, mounted()
    rows = [
        [
            *(os.fspath(info.mountpoint), _shown(info, output), str(info.state), _front(info)),
            *(info.mounted or "-", str(info.pid or "-")),
        ]
        for info in found
    ]
    headings = ["MOUNTPOINT", "SNAPSHOT", "STATE", "FRONT", "SINCE", "PID"]
    output.listing(headings, rows, map(_record, found), expendable=["SINCE", "FRONT"])


def _shown(info: MountInfo, output: Output) -> str:
    """Return the snapshot that the mount reports.

    The kernel's mount table knows only the one that the mount began with; it is the fallback.
    """
    if info.snapshot is None:
        dataset, at, snapshot = info.source.partition(":")[2].partition("@")
        return f"{dataset}{at}{output.snapshot_id(snapshot)}"
    return f"{info.dataset}@{output.snapshot_id(info.snapshot)}"


def _front(info: MountInfo) -> str:
    """Return the front that the mount reports, or else what the kernel's mount table shows."""
    kind = (info.details.get("front") or {}).get("kind")
    return str(kind or ("erofs" if info.is_erofs else "fuse"))


def _record(info: MountInfo) -> dict[str, object]:
    return {
        "mountpoint": os.fspath(info.mountpoint),
        "source": info.source,
        "state": str(info.state),
        "front": _front(info),
        **picked(info, "dataset generation snapshot mounted pid"),
    }

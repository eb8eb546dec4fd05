"""`dlcmd mount` over a blob that is pinned on this node's SSD.

The kernel serves the mount, and no daemon is started.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.mounting.mount_parts import mount_options, ssd_settings
from dieselfs.cli.mounting.mount_request import MountRequest
from dieselfs.cli.rendering.output import counted
from dieselfs.errors import MountError, MountpointBusy

if TYPE_CHECKING:
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.fuse.fronts.local_front import LocalMount
    from dieselfs.fuse.mounts.mount_table import MountInfo
    from metadata.snapshot import Snapshot


def mounted_locally(
    context: CommandContext,
    request: MountRequest,
    ssd: SsdSettings | None,
    snapshot: Snapshot,
    mountpoint: Path,
) -> bool:
    """Mount the snapshot's blob, if the SSD has it and this process may.

    Returns False if a daemon has to serve. If the mount failed, the reason has been printed.
    """
    blobs = _blobs(request, ssd, snapshot)
    if blobs is None:
        return False
    try:
        _mount(context, snapshot, blobs, _wanted(context, request, mountpoint))
    except MountError as error:
        context.output.note(f"not mounted locally: {error}")
        return False
    return True


def refresh_locally(
    context: CommandContext, request: MountRequest, running: MountInfo, snapshot: Snapshot
) -> None:
    """Replace the mount of an older snapshot by the mount of the newest.

    Raises `MountpointBusy` if the newest has no blob here.
    """
    if running.snapshot == snapshot.id:
        note = (
            f"{running.mountpoint} already shows the newest snapshot, "
            f"{snapshot.dataset.name}@{snapshot.id}"
        )
        record = _record(running.mountpoint, snapshot)
        _say(context, [note], {**record, "refreshed": False})
        return
    blobs = _blobs(request, ssd_settings(context, request), snapshot)
    if blobs is None:
        name = f"{snapshot.dataset.name}@{snapshot.id}"
        raise MountpointBusy(
            (
                f"{running.mountpoint} is a local mount, and the mount of {name} is not pinned "
                "on this SSD"
            ),
            (
                f"pin it: dlcmd warmup --pin-mount {name}; or mount it with a daemon, after "
                f"dlcmd umount {running.mountpoint}"
            ),
        )
    wanted = _wanted(context, request, running.mountpoint, replace=True)
    _mount(context, snapshot, blobs, wanted)


def refuse_upgrade(running: MountInfo) -> None:
    """Raise `MountError` for a mount that no program serves."""
    from dieselfs.fuse.mounts.mount_table import MountState

    if running.state is MountState.LOCAL:
        raise MountError(
            f"{running.mountpoint} is a local mount: no program serves it",
            "there is nothing to upgrade",
        )


def _mount(
    context: CommandContext, snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount
) -> None:
    from dieselfs.fuse.fronts.local_front import mount_local
    from dieselfs.fuse.mounts.erofs_mounts import share

    shown = _same(snapshot, blobs, wanted)
    if shown is not None:
        share(shown, wanted.mountpoint, wanted.replace)
        how = f"pages shared with {shown}"
    else:
        how = f"{mount_local(snapshot, blobs, wanted).value} over {blobs[0]}"
    name = f"{snapshot.dataset.name}@{snapshot.id}"
    done = "refreshed" if wanted.replace else "mounted"
    record = _record(wanted.mountpoint, snapshot)
    if wanted.replace:
        record["refreshed"] = True
    notes = [
        f"{done} {name} ({counted(snapshot.file_count, 'file')}) at {wanted.mountpoint}",
        f"front: local, {how}: no daemon serves it",
    ]
    _say(context, notes, record)


def _same(snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount) -> Path | None:
    """Return where the same blob is mounted already with the same options, or None."""
    from dieselfs.fuse.mounts.mount_table import MountState, mounts

    owner, others = wanted.owner, not wanted.private
    options = {"allow_other": others, "uid": owner.uid, "gid": owner.gid}
    for info in mounts():
        details = info.details
        if (
            info.state is MountState.LOCAL
            and info.snapshot == snapshot.id
            and details.get("dataset_id") == snapshot.dataset.id.hex()
            and details.get("blob") == [os.fspath(path) for path in blobs]
            and options.items() <= dict(details.get("options") or {}).items()
            and wanted.front == "auto"
            and wanted.blob_cache == "auto"
        ):
            return info.mountpoint
    return None


def _blobs(request: MountRequest, ssd: SsdSettings | None, snapshot: Snapshot) -> list[Path] | None:
    from dieselfs.cache.ssd.blob import find_blob
    from dieselfs.fuse.fronts.local_front import local_front

    blobs = None if ssd is None else find_blob(ssd.folder, snapshot)
    return blobs if blobs and local_front(request.front) is not None else None


def _wanted(
    context: CommandContext, request: MountRequest, mountpoint: Path, *, replace: bool = False
) -> LocalMount:
    from dieselfs.fuse.fronts.local_front import LocalMount

    options = mount_options(context, request)
    return LocalMount(
        mountpoint,
        options.owner,
        private=not options.allow_other,
        front=request.front,
        blob_cache=request.blob_cache,
        replace=replace,
    )


def _record(mountpoint: Path, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "mountpoint": str(mountpoint),
        "snapshot": f"{snapshot.dataset.name}@{snapshot.id}",
        "files": snapshot.file_count,
        "front": "local",
        "pid": None,
        "log": None,
    }


def _say(context: CommandContext, notes: Sequence[str], record: dict[str, Any]) -> None:
    if context.output.json:
        context.output.record(record)
        return
    for note in notes:
        context.output.note(note)

"""The start of a mount over a blob that is pinned on this node's SSD.

The kernel serves the mount, and no daemon is started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from dieselfs.cache.ssd.blob import find_blob
from dieselfs.cache.ssd.settings import SsdSettings
from dieselfs.config import Config
from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.fronts.local_front import LocalMount, local_front, mount_local
from dieselfs.fuse.mounts.erofs_mounts import share
from dieselfs.fuse.mounts.mount_table import MountInfo, MountState, mounts
from dieselfs.fuse.starting.mount_request import MountRequest
from dieselfs.fuse.starting.mount_settings import mount_options, ssd_settings
from dieselfs.fuse.starting.started_mount import StartedMount
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)


def start_locally(
    config: Config,
    request: MountRequest,
    ssd: SsdSettings | None,
    snapshot: Snapshot,
    mountpoint: Path,
    say: Callable[[str], None],
) -> StartedMount | None:
    """Mount the snapshot's blob, if the SSD has it and this process may.

    Returns None if a daemon has to serve. If the mount failed, `say` gets the reason.
    """
    blobs = _blobs(request, ssd, snapshot)
    if blobs is None:
        return None
    try:
        return _mount(snapshot, blobs, _wanted(config, request, mountpoint))
    except MountError as error:
        say(f"not mounted locally: {error}")
        return None


def refresh_locally(
    config: Config, request: MountRequest, running: MountInfo, snapshot: Snapshot
) -> StartedMount:
    """Replace the mount of an older snapshot by the mount of the newest.

    Raises `MountpointBusy` if the newest has no blob here.
    """
    name = f"{snapshot.dataset.name}@{snapshot.id}"
    if running.snapshot == snapshot.id:
        note = f"{running.mountpoint} already shows the newest snapshot, {name}"
        return _started(running.mountpoint, snapshot, (note,), refreshed=False)
    blobs = _blobs(request, ssd_settings(config, request), snapshot)
    if blobs is None:
        raise MountpointBusy(
            f"{running.mountpoint} is a local mount, and the mount of {name} is not pinned on "
            "this SSD",
            f"pin it: dlcmd warmup --pin-mount {name}; or mount it with a daemon, after "
            f"dlcmd umount {quote(os.fspath(running.mountpoint))}",
        )
    return _mount(snapshot, blobs, _wanted(config, request, running.mountpoint, replace=True))


def refuse_upgrade(running: MountInfo) -> None:
    """Raise `MountError` for a mount that no program serves."""
    if running.state is MountState.LOCAL:
        raise MountError(
            f"{running.mountpoint} is a local mount: no program serves it",
            "there is nothing to upgrade",
        )


def _mount(snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount) -> StartedMount:
    shown = _shared(snapshot, blobs, wanted)
    if shown is not None:
        how = f"pages shared with {shown}"
    else:
        how = f"{mount_local(snapshot, blobs, wanted).value} over {blobs[0]}"
    name, files = f"{snapshot.dataset.name}@{snapshot.id}", snapshot.file_count
    counted = f"{files:,} file{'' if files == 1 else 's'}"
    done = "refreshed" if wanted.replace else "mounted"
    notes = (
        f"{done} {name} ({counted}) at {wanted.mountpoint}",
        f"front: local, {how}: no daemon serves it",
    )
    return _started(wanted.mountpoint, snapshot, notes, refreshed=wanted.replace or None)


def _started(
    mountpoint: Path, snapshot: Snapshot, notes: tuple[str, ...], *, refreshed: bool | None
) -> StartedMount:
    name = f"{snapshot.dataset.name}@{snapshot.id}"
    return StartedMount(
        mountpoint, name, snapshot.file_count, "local", None, None, notes, refreshed
    )


def _shared(snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount) -> Path | None:
    """Show the mount of the same blob with the same options here too, if there is one.

    Return where it was shown before, or None.
    """
    owner, others = wanted.owner, not wanted.private
    options = {"allow_other": others, "uid": owner.uid, "gid": owner.gid}
    for info in mounts():
        details = info.details
        if (
            info.state is MountState.LOCAL
            and info.snapshot == snapshot.id
            and info.is_of(snapshot.dataset.id)
            and details.get("blob") == [os.fspath(path) for path in blobs]
            and options.items() <= dict(details.get("options") or {}).items()
            and wanted.front == "auto"
            and wanted.blob_cache == "auto"
        ):
            try:
                share(info.mountpoint, wanted.mountpoint, wanted.replace, device=info.device)
            except OSError as error:  # it was unmounted meanwhile
                log.debug("%s is not shared: %s", info.mountpoint, error)
                continue
            return info.mountpoint
    return None


def _blobs(request: MountRequest, ssd: SsdSettings | None, snapshot: Snapshot) -> list[Path] | None:
    blobs = None if ssd is None else find_blob(ssd.folder, snapshot)
    return blobs if blobs and local_front(request.front) is not None else None


def _wanted(
    config: Config, request: MountRequest, mountpoint: Path, *, replace: bool = False
) -> LocalMount:
    options = mount_options(config, request)
    return LocalMount(
        mountpoint,
        options.owner,
        private=not options.allow_other,
        front=request.front,
        blob_cache=request.blob_cache,
        replace=replace,
    )

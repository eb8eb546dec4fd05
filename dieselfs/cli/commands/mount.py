"""`dlcmd mount`: choose a snapshot and serve it, in the background by default.

The background daemon is a second `dlcmd mount --foreground` that gets the snapshot's file: it
chooses nothing, and needs no index. If the dataset is mounted already, --refresh makes that mount
show the snapshot chosen.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.arguments.option_groups import (
    cache_cluster_options,
    peer_options,
    ssd_options,
    ssd_warmup_option,
)
from dieselfs.cli.command import Size, command, former_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.mounting.mount_local import mounted_locally, refresh_locally, refuse_upgrade
from dieselfs.cli.mounting.mount_options import parse_mount_options
from dieselfs.cli.mounting.mount_parts import (
    check_room,
    opened,
    read_settings,
)
from dieselfs.cli.mounting.mount_request import (
    BLOB_CACHES,
    FRONTS,
    MountRequest,
    daemon_command,
    mount_request,
    sharing_key,
)
from dieselfs.cli.mounting.store_probe import check_store
from dieselfs.cli.rendering.output import counted
from dieselfs.dataset.address import parse_address
from dieselfs.errors import MountError, MountpointBusy, SnapshotNotFound

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dieselfs.fuse.mounts.mount_table import MountInfo
    from metadata.snapshot import Snapshot

_ANSWER_TIMEOUT_S: Final = 2.0


@command(
    examples=[
        "dlcmd mount imagenet /mnt/imagenet",
        "dlcmd mount --refresh imagenet /mnt/imagenet",
        "dlcmd mount --upgrade imagenet /mnt/imagenet",
        "dlcmd mount imagenet@12 /mnt/old --no-index --memory 8GiB",
        "dlcmd mount imagenet /mnt/imagenet --memory 2GiB --shuffle seed=1,group=100",
        "dlcmd mount --foreground imagenet /mnt/imagenet",
        "dlcmd mount imagenet /mnt/imagenet -o allow_other,uid=1000",
        (
            "dlcmd mount imagenet /mnt/imagenet --ssd /local/nvme/dieselfs --ssd-size 500GiB "
            "--ssd-warmup"
        ),
        (
            "dlcmd mount imagenet /mnt/imagenet --cache-cluster redis "
            "--cache-cluster-secret-file cluster.secret"
        ),
        (
            "dlcmd mount imagenet /mnt/imagenet --task run1 --peers redis --peer-listen "
            "10.0.0.1 --secret-file run1.secret"
        ),
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.argument("mountpoint")
@click.option(
    "-f",
    "--foreground",
    is_flag=True,
    help="Stay in the foreground and log to stderr; Ctrl-C ends it.",
)
@click.option("--snapshot", metavar="FILE|ID", help="Mount this snapshot, even if it is stale.")
@click.option(
    "--refresh",
    is_flag=True,
    help=(
        "Make a new snapshot if the newest is stale (with --no-index: pull the newest). A "
        "running mount then shows it."
    ),
)
@click.option(
    "--no-index", is_flag=True, help="Don't ask the index; mount the newest snapshot known."
)
@click.option(
    "--memory",
    "--cache-memory",
    "memory",
    type=Size(),
    metavar="SIZE",
    help=(
        "Budget of node memory, shared by all processes of the task on this node "
        "(default: a quarter of the free memory)."
    ),
)
@click.option(
    "--shuffle",
    metavar="seed=N,group=N",
    help=(
        "The order in which files will be read (see `dlcmd shuffle`): its chunks are "
        "prefetched, epoch after epoch."
    ),
)
@click.option(
    "--eviction",
    type=click.Choice(["uniform", "lru"]),
    help=(
        "What full node memory evicts while no order is known: nothing (default), or the "
        "least recently used."
    ),
)
@click.option(
    "--task",
    metavar="NAME",
    help=(
        "Share node memory with the mounts and clients of this name (default: those of "
        "the dataset)."
    ),
)
@click.option(
    "--preload",
    is_flag=True,
    help="Fetch chunks when the mount starts, as many as fit into node memory.",
)
@click.option(
    "--prefill",
    type=Size(),
    metavar="SIZE",
    help=(
        "Page cache for files that nobody has read yet (default: a quarter of the free "
        "memory; 0: none)."
    ),
)
@former_option("--store-ahead", "prefill", type=Size())
@click.option(
    "--front",
    type=click.Choice(FRONTS),
    help=(
        "What answers names: the kernel's EROFS, or FUSE (default: EROFS where it can be mounted)."
    ),
)
@click.option(
    "--blob-cache",
    type=click.Choice(BLOB_CACHES),
    help=(
        "With EROFS: read the blob through the page cache, or directly (default: by the "
        "sizes of the files)."
    ),
)
@click.option(
    "--upgrade",
    is_flag=True,
    help="Let the installed version serve the mount that is there; readers go on.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help=("How long reads wait for a store that does not answer before they fail (default: 150)."),
)
@peer_options
@ssd_options(
    "Cache chunks in this folder of a local SSD, for all mounts and commands that name it. "
    "none: on no SSD, whatever is configured."
)
@ssd_warmup_option
@cache_cluster_options
@click.option("--allow-other", is_flag=True, help="Let other users access the mount.")
@click.option("--uid", type=click.IntRange(min=0), help="Owner of all files (default: you).")
@click.option("--gid", type=click.IntRange(min=0), help="Group of all files (default: yours).")
@click.option("--nonempty", is_flag=True, help="Mount over a directory that is not empty.")
@click.option(
    "-o", "options", multiple=True, metavar="OPT[=VALUE],…", help="Options as in an fstab line."
)
def mount(
    context: CommandContext,
    address: str,
    mountpoint: str,
    foreground: bool,
    upgrade: bool,
    options: Sequence[str],
    **flags: Any,
) -> None:
    """Mount a dataset as a read-only file system.

    The command takes the newest snapshot on this machine or in the store, or makes the first one.
    If the newest is older than the dataset, the command fails, unless --refresh makes a new one.
    The command returns when the mount answers.

    With --refresh, a running mount of the dataset changes to the newest snapshot: paths lead to it,
    and open files stay as they were.
    """
    chosen = parse_mount_options(options)
    context = context.at(chosen.get("store"), chosen.get("index"), chosen.get("profile"))
    request = mount_request(parse_address(address), Path(mountpoint), chosen, flags)
    if upgrade:
        _upgrade(context, request)
    elif foreground:
        from dieselfs.cli.mounting.mount_serving import serve

        serve(context, request, lambda: _choose(context, request))
    else:
        _start(context, request)


def _start(context: CommandContext, request: MountRequest) -> None:
    """Check all that can be wrong, then start a daemon and wait until it answers."""
    from dieselfs.fuse.mounts.mountpoint import check_mountable, resolve
    from dieselfs.fuse.supervision.daemonize import default_log_file, start_in_background

    running = _running(request) if request.refresh else None
    if running is not None:
        _refresh(context, request, running)
        return
    check_mountable(request.mountpoint, request.nonempty)
    settings = read_settings(context, request)
    if settings.ssd is not None:
        settings.ssd.check()
    path = _choose(context, request)
    with opened(path, request) as snapshot:
        if mounted_locally(context, request, settings.ssd, snapshot, resolve(request.mountpoint)):
            return
        away = check_store(context, snapshot, settings.ssd)
        if away:
            context.output.note(away)
        check_room(request, settings, snapshot)
        name, files = f"{snapshot.dataset.name}@{snapshot.id}", snapshot.file_count
    mountpoint = resolve(request.mountpoint)
    if _shares(context, request, path, name, mountpoint):
        return
    log_file = default_log_file(mountpoint)
    pid = start_in_background(daemon_command(context, request, path), mountpoint, log_file=log_file)
    front = _front(mountpoint)
    if context.output.json:
        context.output.record(
            {
                "mountpoint": str(mountpoint),
                "snapshot": name,
                "files": files,
                "front": front.get("kind"),
                "pid": pid,
                "log": str(log_file),
            }
        )
        return
    context.output.note(
        f"mounted {name} ({counted(files, 'file')}) at {mountpoint}; log: {log_file}"
    )
    more = f"; for more: {front['more']}" if front.get("more") else ""
    context.output.note(f"front: {front.get('kind')}, {front.get('reason')}{more}")


def _shares(
    context: CommandContext, request: MountRequest, snapshot: Path, name: str, mountpoint: Path
) -> bool:
    """Show a mount of the same snapshot with the same options here too, if there is one.

    Both then share one server and one copy of the pages. Returns False if there is no such mount.
    """
    from dieselfs.fuse.mounts.erofs_mounts import share
    from dieselfs.fuse.mounts.mount_table import MountState, ask, mount_entries

    if os.geteuid() != 0:
        return False
    key = sharing_key(context, request, snapshot)
    alike = [entry for entry in mount_entries() if entry.is_dieselfs and entry.shown == name]
    for info in ask(alike, _ANSWER_TIMEOUT_S):
        details = info.details
        is_same = details.get("sharing_key") == key and info.is_erofs
        if info.state is MountState.SERVING and is_same:
            share(info.mountpoint, mountpoint)
            if context.output.json:
                context.output.record(
                    {
                        "mountpoint": str(mountpoint),
                        "snapshot": name,
                        "files": details.get("files"),
                        "front": (details.get("front") or {}).get("kind"),
                        "pid": info.pid,
                        "log": None,
                    }
                )
            else:
                context.output.note(
                    f"mounted {name} at {mountpoint}; it shares the server of {info.mountpoint}"
                )
            return True
    return False


def _front(mountpoint: Path) -> Mapping[str, Any]:
    """Return the front of a new mount, and the reason for it."""
    from dieselfs.fuse.mounts.mount_table import ask, entry_at

    entry = entry_at(mountpoint)
    if entry is None:
        return {}
    [info] = ask([entry], _ANSWER_TIMEOUT_S)
    return info.details.get("front") or {}


def _running(request: MountRequest) -> MountInfo | None:
    """Return the mount that serves at the mountpoint already, or None."""
    from dieselfs.fuse.mounts.mount_table import MountState, ask, entry_at
    from dieselfs.fuse.mounts.mountpoint import resolve

    entry = entry_at(resolve(request.mountpoint))
    if entry is None or not entry.is_dieselfs:
        return None
    [info] = ask([entry], _ANSWER_TIMEOUT_S)
    return info if info.state in (MountState.SERVING, MountState.LOCAL) else None


def _refresh(context: CommandContext, request: MountRequest, running: MountInfo) -> None:
    """Choose a snapshot as for a new mount, then make the running mount show it."""
    from dieselfs.fuse.mounts.mount_table import MountState
    from dieselfs.fuse.supervision.refresh_request import request_refresh

    _check_refreshable(request, running)
    with opened(_choose(context, request), request) as snapshot:
        _check_same_dataset(snapshot, running)
        if running.state is MountState.LOCAL:
            refresh_locally(context, request, running, snapshot)
            return
        generation, files = snapshot.generation, snapshot.file_count
    is_newer = generation > (running.generation or 0)
    shown = request_refresh(running, generation) if is_newer else running.snapshot
    name = f"{running.dataset}@{shown}"
    if context.output.json:
        context.output.record(
            {
                "mountpoint": str(running.mountpoint),
                "snapshot": name,
                "refreshed": is_newer,
                "pid": running.pid,
            }
        )
    elif is_newer:
        context.output.note(
            f"refreshed {running.mountpoint}: {name} ({counted(files, 'file')}), before "
            f"@{running.snapshot}"
        )
    else:
        context.output.note(f"{running.mountpoint} already shows the newest snapshot, {name}")


def _upgrade(context: CommandContext, request: MountRequest) -> None:
    """Replace the server of the running mount by the program that is installed now."""
    from dieselfs.fuse.mounts.mountpoint import resolve
    from dieselfs.fuse.supervision.refresh_request import request_upgrade

    running = _running(request)
    if running is None:
        raise MountError(
            f"no mount serves at {resolve(request.mountpoint)}", "`dlcmd mounts` lists them"
        )
    refuse_upgrade(running)
    server_pid = request_upgrade(running)
    if context.output.json:
        context.output.record(
            {"mountpoint": str(running.mountpoint), "pid": running.pid, "server_pid": server_pid}
        )
    else:
        context.output.note(f"upgraded {running.mountpoint}: process {server_pid} serves it now")


def _check_refreshable(request: MountRequest, running: MountInfo) -> None:
    where, wanted = running.mountpoint, request.address.dataset
    unmounting = f"unmount it first: dlcmd umount {where}"
    if running.dataset != wanted:
        raise MountpointBusy(f"{running.dataset} is mounted at {where}, not {wanted}", unmounting)
    if request.snapshot:
        raise MountpointBusy(
            (
                f"{wanted} is mounted at {where}, and a refresh takes the newest snapshot, not "
                f"{request.snapshot}"
            ),
            unmounting,
        )


def _check_same_dataset(snapshot: Snapshot, running: MountInfo) -> None:
    """Raise `MountpointBusy` if the running mount is of another dataset than the snapshot.

    A name that was removed and created again is another dataset.
    """
    mounted_id = running.details.get("dataset_id")
    if mounted_id != snapshot.dataset.id.hex():
        raise MountpointBusy(
            (
                f"the dataset mounted at {running.mountpoint} is not the "
                f"{snapshot.dataset.name} of the store"
            ),
            f"check --store, or unmount it first: dlcmd umount {running.mountpoint}",
        )


def _choose(context: CommandContext, request: MountRequest) -> Path:
    """Return the snapshot file to mount."""
    from dieselfs.cli.commands.snapshot import create_snapshot
    from dieselfs.snapshots import snapshot_choice
    from metadata.errors import SnapshotRefused, SnapshotStale

    dataset, folder = request.address.dataset, context.snapshot_folder
    if request.snapshot:
        return snapshot_choice.find_file_or_snapshot(
            request.snapshot, dataset, folder, context.store()
        )
    if request.no_index:
        store = context.store()
        if request.refresh:
            return snapshot_choice.pull_snapshot(None, dataset, folder, store)
        return snapshot_choice.newest_known(dataset, folder, store)
    with context.client(request.address) as client:
        places = client.dataset.store, client.dataset.index
        try:
            return snapshot_choice.newest_fresh(dataset, folder, *places)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused) as error:
            # The first mount needs no flag; a snapshot that exists is replaced only on request.
            if not (request.refresh or isinstance(error, SnapshotNotFound)):
                raise
            context.output.note(f"{str(error).partition(': ')[0]}: making a new one")
            return create_snapshot(context, client.dataset)

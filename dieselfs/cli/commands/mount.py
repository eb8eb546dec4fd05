"""`dlcmd mount`: choose a snapshot and serve it, in the background by default.

The background daemon is a second `dlcmd mount --foreground` that gets the snapshot's file: it
chooses nothing, and needs no index. If the dataset is mounted already, --refresh makes that mount
show the snapshot chosen.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.arguments.option_groups import (
    cache_cluster_options,
    peer_options,
    ssd_options,
    ssd_warmup_option,
    trace_options,
)
from dieselfs.cli.command import Size, command, former_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.mounting.mount_flags import (
    BLOB_CACHES,
    FRONTS,
    MOST_THREADS,
    mount_request,
)
from dieselfs.cli.mounting.mount_options import parse_mount_options
from dieselfs.cli.rendering.output import counted
from dieselfs.dataset.address import parse_address
from dieselfs.errors import MountError, MountpointBusy, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dieselfs.fuse.mounts.mount_table import MountInfo
    from dieselfs.fuse.starting.mount_request import MountRequest
    from dieselfs.fuse.starting.start import Create
    from dieselfs.fuse.starting.started_mount import StartedMount
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
    "--refresh/--no-refresh",
    default=None,
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
    "--job",
    metavar="NAME",
    help=(
        "The training run that reads here, by which cache policies know it and remote IO is "
        "allocated (default: the job id of Slurm, or else --task); 'callers': the jobs of the "
        "processes that read."
    ),
)
@click.option(
    "--preload",
    is_flag=True,
    help="Fetch chunks when the mount starts, as many as fit into node memory.",
)
@click.option(
    "--no-foreign-plans",
    is_flag=True,
    help=(
        "Take no reading orders that programs write into .dieselfs/plan/ (default: from "
        "everybody who may read the mount)."
    ),
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
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    metavar="N",
    help="Threads that receive the kernel's reads at a time (default: one a core, 2 to 4).",
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
@click.option(
    "--cache-datasets",
    metavar="PATTERNS",
    help=(
        "Datasets that SSDs cache, this node's and those of the cache cluster, such as "
        "'imagenet*,!*-val'; ! leaves out (default: all)."
    ),
)
@trace_options
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
    from dieselfs.fuse.starting.configured_request import configured_request
    from dieselfs.fuse.starting.mount_request import names_file

    chosen = parse_mount_options(options)
    context = context.at(chosen.get("store"), chosen.get("index"), chosen.get("profile"))
    request = mount_request(parse_address(address), Path(mountpoint), chosen, flags)
    asked = bool(request.refresh)
    if not (foreground and names_file(request)):  # the starter of a daemon has resolved them
        context = context.shared(request.address.dataset)
    request = configured_request(context.config, request)
    if upgrade:
        if foreground or asked or request.snapshot:
            raise UsageError(
                "--upgrade replaces the program of a mount, and goes with no snapshot, --refresh "
                "or --foreground",
                "leave them out",
            )
        _upgrade(context, request)
    elif foreground:
        from dieselfs.cli.mounting.mount_serving import serve

        serve(context, request, lambda: _choose(context, request))
    else:
        _start(context, request, asked)


def _start(context: CommandContext, request: MountRequest, refreshes: bool) -> None:
    """Mount, or with `refreshes` let a running mount show the newest snapshot."""
    from dieselfs.fuse.starting.start import start_mount

    running = _running(request) if refreshes else None
    if running is not None:
        _refresh(context, request, running)
        return
    _show(context, start_mount(context.config, request, context.output.note, _create(context)))


def _show(context: CommandContext, started: StartedMount) -> None:
    if not context.output.json:
        for note in started.notes:
            context.output.note(note)
        return
    record: dict[str, Any] = {
        "mountpoint": str(started.mountpoint),
        "snapshot": started.snapshot,
        "files": started.files,
        "front": started.front,
        "pid": started.pid,
        "log": None if started.log is None else str(started.log),
    }
    if started.refreshed is not None:
        record["refreshed"] = started.refreshed
    context.output.record(record)


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
    from dieselfs.fuse.starting.local_start import refresh_locally
    from dieselfs.fuse.starting.mount_settings import opened
    from dieselfs.fuse.starting.store_probe import quick_stale_note, stale_note
    from dieselfs.fuse.supervision.refresh_request import request_refresh

    _check_refreshable(request, running)
    with opened(_choose(context, request), request) as snapshot:
        _check_same_dataset(snapshot, running)
        if running.state is MountState.LOCAL:
            _show(context, refresh_locally(context.config, request, running, snapshot))
            if stale := quick_stale_note(context.config, snapshot, running.mountpoint):
                context.output.note(stale)
            return
        generation, files = snapshot.generation, snapshot.file_count
        if stale := stale_note(context.config, snapshot, running.mountpoint):
            context.output.note(stale)
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
    from dieselfs.fuse.starting.local_start import refuse_upgrade
    from dieselfs.fuse.supervision.refresh_request import request_upgrade

    running = _running(request)
    if running is None:
        raise MountError(
            f"no mount serves at {resolve(request.mountpoint)}", "`dlcmd mounts` lists them"
        )
    _check_dataset(request, running)
    refuse_upgrade(running)
    server_pid = request_upgrade(running)
    if context.output.json:
        context.output.record(
            {"mountpoint": str(running.mountpoint), "pid": running.pid, "server_pid": server_pid}
        )
    else:
        context.output.note(f"upgraded {running.mountpoint}: process {server_pid} serves it now")


def _check_refreshable(request: MountRequest, running: MountInfo) -> None:
    _check_dataset(request, running)
    if request.snapshot:
        raise MountpointBusy(
            (
                f"{running.dataset} is mounted at {running.mountpoint}, and a refresh takes the "
                f"newest snapshot, not {request.snapshot}"
            ),
            _unmount_first(running),
        )


def _check_dataset(request: MountRequest, running: MountInfo) -> None:
    where, wanted = running.mountpoint, request.address.dataset
    if running.dataset != wanted:
        raise MountpointBusy(
            f"{running.dataset} is mounted at {where}, not {wanted}", _unmount_first(running)
        )


def _unmount_first(running: MountInfo) -> str:
    return f"unmount it first: dlcmd umount {quote(os.fspath(running.mountpoint))}"


def _check_same_dataset(snapshot: Snapshot, running: MountInfo) -> None:
    """Raise `MountpointBusy` if the running mount is of another dataset than the snapshot.

    A name that was removed and created again is another dataset.
    """
    if not running.is_of(snapshot.dataset.id):
        raise MountpointBusy(
            (
                f"the dataset mounted at {running.mountpoint} is not the "
                f"{snapshot.dataset.name} of the store"
            ),
            f"check --store, or {_unmount_first(running)}",
        )


def _create(context: CommandContext) -> Create:
    """Return a function that makes a snapshot and shows its progress."""
    from dieselfs.cli.commands.snapshot import create_snapshot

    return lambda dataset: create_snapshot(context, dataset, unpublished=context.output.note)


def _choose(context: CommandContext, request: MountRequest) -> Path:
    """Return the snapshot file to mount."""
    from dieselfs.fuse.starting.start import choose_snapshot

    return choose_snapshot(context.config, request, context.output.note, _create(context))

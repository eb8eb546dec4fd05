"""`dlcmd mount`: choose a snapshot, then serve it, in the background unless told otherwise.

The background daemon is a second `dlcmd mount --foreground` that is told the snapshot's file: it chooses nothing, and needs no index.
Where the dataset is mounted already, --refresh lets that mount take the snapshot chosen.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.address import parse_address
from dieselfs.cli.invocation import Invocation
from dieselfs.cli.mount_options import parse_mount_options
from dieselfs.cli.mount_request import MountRequest, daemon_command, mount_request
from dieselfs.cli.option_groups import peer_options, ring_options, ssd_options, ssd_warmup_option
from dieselfs.cli.output import counted
from dieselfs.cli.store_check import check_store
from dieselfs.cli.verb import Size, verb
from dieselfs.errors import LocalFileError, MountpointBusy, SnapshotNotFound

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dieselfs.cachenodes.ring_settings import RingSettings
    from dieselfs.fuse.mount import MountOptions
    from dieselfs.fuse.mount_table import MountInfo
    from dieselfs.node_memory.node_memory import NodeMemory
    from dieselfs.node_memory.task_folder import TaskFolder
    from dieselfs.peercache.settings import PeerSettings
    from dieselfs.peercache.task_figures import TaskFigures
    from dieselfs.ssd_tier import SsdSettings
    from metadata.snapshot import Snapshot

_ANSWER_TIMEOUT_S: Final = 2.0


@verb(
    examples=[
        "dlcmd mount imagenet /mnt/imagenet",
        "dlcmd mount --refresh imagenet /mnt/imagenet",
        "dlcmd mount imagenet@12 /mnt/old --no-index --memory 8GiB",
        "dlcmd mount imagenet /mnt/imagenet --memory 2GiB --shuffle seed=1,group=100",
        "dlcmd mount --foreground imagenet /mnt/imagenet",
        "dlcmd mount imagenet /mnt/imagenet -o allow_other,uid=1000",
        "dlcmd mount imagenet /mnt/imagenet --ssd /local/nvme/dieselfs --ssd-size 500GiB --ssd-warmup",
        "dlcmd mount imagenet /mnt/imagenet --ring redis --ring-secret-file ring.secret",
        "dlcmd mount imagenet /mnt/imagenet --task run1 --peers redis --peer-listen 10.0.0.1 --secret-file run1.secret",
    ]
)
@click.argument("address", metavar="DATASET[@SNAPSHOT]")
@click.argument("mountpoint")
@click.option("-f", "--foreground", is_flag=True, help="Stay, and log to stderr; end with Ctrl-C.")
@click.option("--snapshot", metavar="FILE|ID", help="Mount this one, fresh or not.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Make a new snapshot if the newest is stale (--no-index: pull the newest); a running mount takes it.",
)
@click.option(
    "--no-index", is_flag=True, help="Don't ask the index: mount the newest snapshot known."
)
@click.option(
    "--memory",
    "--cache-memory",
    "memory",
    type=Size(),
    metavar="SIZE",
    help="Memory for chunks, shared by all processes of the task on this node (default: a quarter of what is free).",
)
@click.option(
    "--shuffle",
    metavar="seed=N,group=N",
    help="The order that will be read (see `dlcmd shuffle`): its chunks are fetched ahead, epoch after epoch.",
)
@click.option(
    "--eviction",
    type=click.Choice(["uniform", "lru"]),
    help="What leaves full memory while no order is known: nothing (default), or what was used least recently.",
)
@click.option(
    "--task",
    metavar="NAME",
    help="Share memory with the mounts and clients of this name (default: those of the dataset).",
)
@click.option(
    "--preload", is_flag=True, help="Fetch chunks at once, as many as fit into that memory."
)
@click.option(
    "--store-ahead",
    type=Size(),
    metavar="SIZE",
    help="Page cache for files that nobody has read yet (default: a quarter of what is free; 0: none).",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Answer all requests in Python: slower; to compare, or to find a fault.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="How long reads wait for a store that does not answer, before they fail (default: 150).",
)
@peer_options
@ssd_options(
    "Keep chunks in this folder of a local SSD, for all who name it; none: nowhere, whatever is configured."
)
@ssd_warmup_option
@ring_options
@click.option("--allow-other", is_flag=True, help="Let other users in.")
@click.option("--uid", type=click.IntRange(min=0), help="Owner of everything (default: you).")
@click.option("--gid", type=click.IntRange(min=0), help="Group of everything (default: yours).")
@click.option("--nonempty", is_flag=True, help="Mount over what the directory holds.")
@click.option(
    "-o", "options", multiple=True, metavar="OPT[=VALUE],…", help="The same as in an fstab line."
)
def mount(
    invocation: Invocation,
    address: str,
    mountpoint: str,
    foreground: bool,
    options: Sequence[str],
    **flags: Any,
) -> None:
    """Mount a dataset as a read-only file system.

    Takes the newest snapshot on this machine or in the store, or makes the first one. If the newest is older than the dataset it
    says so, and --refresh makes a new one. Returns when the mount answers. With --refresh, a mount of the dataset that is there
    already goes over to the newest snapshot: paths lead to it, and what is open stays as it was.
    """
    chosen = parse_mount_options(options)
    invocation = invocation.at(chosen.get("store"), chosen.get("index"), chosen.get("profile"))
    request = mount_request(parse_address(address), Path(mountpoint), chosen, flags)
    (_serve if foreground else _start)(invocation, request)


def _start(invocation: Invocation, request: MountRequest) -> None:
    """Check all that can be wrong, then start a daemon and wait until it answers."""
    from dieselfs.fuse.background import default_log_file, start_in_background
    from dieselfs.fuse.mount import check_mountable
    from dieselfs.fuse.mountpoint import resolve

    running = _running(request) if request.refresh else None
    if running is not None:
        _refresh(invocation, request, running)
        return
    check_mountable(_mount_options(invocation, request))
    _peer_settings(invocation, request)
    _ring_settings(invocation, request)
    ssd = _ssd_settings(invocation, request)
    if ssd is not None:
        ssd.check()
    path = _choose(invocation, request)
    with _opened(path, request) as snapshot:
        away = check_store(invocation, snapshot, ssd)
        if away:
            invocation.output.note(away)
        _check_room(request, snapshot)
        name, files = f"{snapshot.dataset.name}@{snapshot.id}", snapshot.file_count
    mountpoint = resolve(request.mountpoint)
    log_file = default_log_file(mountpoint)
    pid = start_in_background(
        daemon_command(invocation, request, path), mountpoint, log_file=log_file
    )
    if invocation.output.json:
        invocation.output.record(
            {
                "mountpoint": str(mountpoint),
                "snapshot": name,
                "files": files,
                "pid": pid,
                "log": str(log_file),
            }
        )
    else:
        invocation.output.note(
            f"mounted {name} ({counted(files, 'file')}) at {mountpoint}; log: {log_file}"
        )


def _running(request: MountRequest) -> MountInfo | None:
    """The mount that serves at the mountpoint already."""
    from dieselfs.fuse.mount_table import MountState, ask, entry_at
    from dieselfs.fuse.mountpoint import resolve

    entry = entry_at(resolve(request.mountpoint))
    if entry is None or not entry.is_dieselfs:
        return None
    [info] = ask([entry], _ANSWER_TIMEOUT_S)
    return info if info.state is MountState.SERVING else None


def _refresh(invocation: Invocation, request: MountRequest, running: MountInfo) -> None:
    """Choose as for a new mount, then let the running one take it."""
    from dieselfs.fuse.refresh_request import request_refresh

    _check_refreshable(request, running)
    with _opened(_choose(invocation, request), request) as snapshot:
        _check_same_dataset(snapshot, running)
        generation, files = snapshot.generation, snapshot.file_count
    is_newer = generation > (running.generation or 0)
    shown = request_refresh(running, generation) if is_newer else running.snapshot
    name = f"{running.dataset}@{shown}"
    if invocation.output.json:
        invocation.output.record(
            {
                "mountpoint": str(running.mountpoint),
                "snapshot": name,
                "refreshed": is_newer,
                "pid": running.pid,
            }
        )
    elif is_newer:
        invocation.output.note(
            f"refreshed {running.mountpoint}: {name} ({counted(files, 'file')}), before @{running.snapshot}"
        )
    else:
        invocation.output.note(f"{running.mountpoint} already shows the newest snapshot, {name}")


def _check_refreshable(request: MountRequest, running: MountInfo) -> None:
    where, wanted = running.mountpoint, request.address.dataset
    unmounting = f"unmount it first: dlcmd umount {where}"
    if running.dataset != wanted:
        raise MountpointBusy(f"{running.dataset} is mounted at {where}, not {wanted}", unmounting)
    if request.snapshot:
        raise MountpointBusy(
            f"{wanted} is mounted at {where}, and a refresh takes the newest snapshot, not {request.snapshot}",
            unmounting,
        )


def _check_same_dataset(snapshot: Snapshot, running: MountInfo) -> None:
    """A name that was removed and made again is another dataset."""
    mounted_id = (running.details or {}).get("dataset_id")
    if mounted_id != snapshot.dataset.id.hex():
        raise MountpointBusy(
            f"the dataset mounted at {running.mountpoint} is not the {snapshot.dataset.name} of the store",
            f"check --store, or unmount it first: dlcmd umount {running.mountpoint}",
        )


def _serve(invocation: Invocation, request: MountRequest) -> None:
    """Mount in this process, until it is unmounted or told to end."""
    from dieselfs.background_warmup import CLOSE_S as WARM_UP_CLOSE_S
    from dieselfs.background_warmup import BackgroundWarmUp, ssd_figures
    from dieselfs.cachenodes.ring_source import ring_figures, with_ring
    from dieselfs.ending import Ending
    from dieselfs.expected_files import ExpectedFiles
    from dieselfs.fuse.mount import check_mountable, run_mount
    from dieselfs.lease_keeper import GOODBYE_S, LeaseKeeper
    from dieselfs.node_memory.node_memory import CLOSE_S, NodeMemory
    from dieselfs.peercache.peer_source import PeerSource
    from dieselfs.snapshots import find_newer
    from dieselfs.ssd_tier import shared_tier, tiered_reader

    _log_to_stderr()
    options = _mount_options(invocation, request)
    check_mountable(options)
    peers, ring = _peer_settings(invocation, request), _ring_settings(invocation, request)
    ssd = _ssd_settings(invocation, request)
    with _opened(_choose(invocation, request), request) as snapshot:
        store, folder = invocation.store(request.patience_s), snapshot.path.parent
        away = check_store(invocation, snapshot, ssd, store)
        if away:
            log.warning("%s", away)
        task = _task_folder(request, snapshot)
        memory_bytes = _memory_bytes(request, task)
        options = replace(
            options,
            task_folder=task.path,
            memory_bytes=memory_bytes,
            preload_bytes=memory_bytes if request.preload else 0,
        )
        if ssd is not None:
            shared_tier(ssd).start()
        ending = Ending(forced=True)
        expected = ExpectedFiles(snapshot)
        source = with_ring(tiered_reader(snapshot.dataset, store, ssd, expected), ring)
        memory = NodeMemory.open(
            task,
            PeerSource(source, task),
            budget_bytes=memory_bytes,
            policy=request.eviction or "uniform",
            lead=True,
            peers=peers,
        )
        if peers is not None and memory.task_statistics() is None:
            log.warning(
                "no peers: task %s is led by another process, and was begun without peers",
                task.path.name,
            )
        warm_up = None
        if ssd is not None and ssd.warmup:
            warm_up = BackgroundWarmUp(store, snapshot.dataset, ssd, ring)
            warm_up.bring(snapshot)

        def newer(shown: Snapshot) -> Snapshot | None:
            found = expected.add(find_newer(shown, folder, invocation.store()))
            if found is not None and warm_up is not None:
                warm_up.bring(found)
            return found

        try:
            goodbye_s = partial(ending.left_s, GOODBYE_S)
            with LeaseKeeper(store, snapshot.dataset, goodbye_s=goodbye_s) as lease:
                run_mount(
                    snapshot,
                    memory,
                    options,
                    newer=newer,
                    store_statistics=store.statistics,
                    peer_statistics=lambda: _peer_figures(memory),
                    ring_statistics=lambda: ring_figures(source),
                    ssd_statistics=lambda: ssd_figures(ssd, warm_up),
                    serving=lease.serve,
                    ending=ending,
                )
        finally:
            if warm_up is not None:
                warm_up.close(ending.left_s(WARM_UP_CLOSE_S))
            memory.close(ending.left_s(CLOSE_S))


def _choose(invocation: Invocation, request: MountRequest) -> Path:
    """The snapshot file to mount."""
    from dieselfs.cli import snapshot_choice
    from dieselfs.cli.snapshot import create_snapshot
    from metadata.errors import SnapshotRefused, SnapshotStale

    dataset, folder = request.address.dataset, invocation.snapshot_folder
    if request.snapshot:
        return snapshot_choice.find_file_or_snapshot(
            request.snapshot, dataset, folder, invocation.store()
        )
    if request.no_index:
        store = invocation.store()
        if request.refresh:
            return snapshot_choice.pull_snapshot(None, dataset, folder, store)
        return snapshot_choice.newest_known(dataset, folder, store)
    with invocation.client(request.address) as client:
        places = client.dataset.store, client.dataset.index
        try:
            return snapshot_choice.newest_fresh(dataset, folder, *places)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused) as error:
            # The first mount of a dataset needs no flag; what exists is replaced only when asked.
            if not (request.refresh or isinstance(error, SnapshotNotFound)):
                raise
            invocation.output.note(f"{str(error).partition(': ')[0]}: making a new one")
            return create_snapshot(invocation, client.dataset)


def _opened(path: Path, request: MountRequest) -> Snapshot:
    from dieselfs.cli.snapshot_choice import check_dataset
    from metadata.snapshot import Snapshot

    try:
        snapshot = Snapshot.open(path)
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", "see `dlcmd snapshot ls`") from error
    check_dataset(snapshot, request.address.dataset, path)
    return snapshot


def _check_room(request: MountRequest, snapshot: Snapshot) -> None:
    """Too little memory for the order would else show only in the log."""
    from dieselfs.plan.requirement import require_room_for

    if request.shuffle is not None:
        memory_bytes = _memory_bytes(request, _task_folder(request, snapshot))
        require_room_for(snapshot, request.shuffle, memory_bytes)


def _task_folder(request: MountRequest, snapshot: Snapshot) -> TaskFolder:
    from dieselfs.node_memory.task_folder import TaskFolder, default_task

    return TaskFolder.at(request.task or default_task(snapshot.dataset))


def _memory_bytes(request: MountRequest, folder: TaskFolder) -> int:
    from dieselfs.node_memory.budget import default_budget_bytes

    return request.memory_bytes or default_budget_bytes(folder.path)


def _peer_settings(invocation: Invocation, request: MountRequest) -> PeerSettings | None:
    from dieselfs.core_dumps import prevent_core_dumps
    from dieselfs.peercache.peer_options import options_in, peer_settings

    options = request.peers.otherwise(options_in(os.environ))
    settings = peer_settings(options, request.task, invocation.config.index)
    if settings is not None:
        prevent_core_dumps()
    return settings


def _ring_settings(invocation: Invocation, request: MountRequest) -> RingSettings | None:
    from dieselfs.cachenodes.ring_options import ring_settings
    from dieselfs.core_dumps import prevent_core_dumps

    settings = ring_settings(request.ring, invocation.config)
    if settings is not None:
        prevent_core_dumps()
    return settings


def _ssd_settings(invocation: Invocation, request: MountRequest) -> SsdSettings | None:
    from dieselfs.ssd_tier import configured, ssd_settings

    return ssd_settings(request.ssd.otherwise(configured(invocation.config)))


def _peer_figures(memory: NodeMemory) -> TaskFigures | None:
    from dieselfs.peercache.task_figures import task_figures

    found = memory.task_statistics()
    return None if found is None else task_figures(found)


def _mount_options(invocation: Invocation, request: MountRequest) -> MountOptions:
    from dieselfs.config import redacted
    from dieselfs.fuse.mount import MountOptions

    return MountOptions(
        request.mountpoint,
        store_url=redacted(invocation.config.store.value),
        allow_other=request.allow_other,
        uid=request.uid,
        gid=request.gid,
        nonempty=request.nonempty,
        plain=request.plain,
        shuffle=request.shuffle,
        store_ahead_bytes=request.store_ahead_bytes,
    )


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )

"""`dlcmd mount --foreground`: a supervisor, and the servers that it starts.

The supervisor has no threads and opens no store, so that it can fork at any time. So a command line
that leaves the choice of a snapshot open makes the choice first. It then becomes a command line
that names the snapshot's file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.mounting.mount_parts import (
    cache_cluster_settings,
    memory_bytes,
    mount_options,
    opened,
    peer_settings,
    peer_statistics,
    ssd_settings,
    task_folder,
)
from dieselfs.cli.mounting.mount_request import MountRequest, daemon_command, sharing_key

if TYPE_CHECKING:
    from dieselfs.fuse.supervision.supervisor import Handed
    from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)


def serve(context: CommandContext, request: MountRequest, choose: Callable[[], Path]) -> None:
    """Mount, and return when the mount has ended.

    If it did not end in order, this ends the process with an exit code.
    """
    from dieselfs.fuse.mounts.mountpoint import check_mountable
    from dieselfs.fuse.supervision.supervisor import UPGRADE_VARIABLE, Supervisor

    _log_to_stderr()
    if UPGRADE_VARIABLE not in os.environ:
        check_mountable(request.mountpoint, request.nonempty)
    if not _names_file(request):
        command = daemon_command(context, request, choose())
        os.execv(command[0], command)
    program = daemon_command(context, request, Path(request.snapshot or ""))
    status = Supervisor(partial(_serve, context, request), program).run()
    if status:
        sys.exit(status)


def _names_file(request: MountRequest) -> bool:
    return request.snapshot is not None and Path(request.snapshot).is_absolute()


def _serve(context: CommandContext, request: MountRequest, handed: Handed) -> int:
    """Run one server, in a process of its own, and return its exit code."""
    from dieselfs.cli.rendering.exit_codes import explain, report

    try:
        _run_server(context, request, handed)
    except Exception as error:
        log.debug("the server ends", exc_info=True)
        failure = explain(error)
        report(failure, as_json=context.output.json)
        return failure.code
    return 0


def _run_server(context: CommandContext, request: MountRequest, handed: Handed) -> None:
    from dieselfs.cache.cluster.source import cache_cluster_statistics, with_cache_cluster
    from dieselfs.cache.peers.peer_source import PeerSource
    from dieselfs.cache.ssd.settings import shared_tier, tiered_reader
    from dieselfs.cache.task.node_memory import CLOSE_S, NodeMemory
    from dieselfs.cache.warmup.background_warmup import CLOSE_S as WARM_UP_CLOSE_S
    from dieselfs.cache.warmup.background_warmup import BackgroundWarmUp, ssd_tier_statistics
    from dieselfs.cli.mounting.store_probe import check_store
    from dieselfs.fuse.mount import Observed, run_mount
    from dieselfs.fuse.supervision.shutdown import Shutdown
    from dieselfs.housekeeping.lease_keeper import GOODBYE_S, LeaseKeeper
    from dieselfs.snapshots.expected_files import ExpectedFiles

    peers, cache_cluster = (
        peer_settings(context, request),
        cache_cluster_settings(context, request),
    )
    ssd = ssd_settings(context, request)
    with ExitStack() as parts:
        store = context.store(request.patience_s)
        snapshot = _snapshot(context, request, handed)
        if snapshot is None:
            return
        parts.enter_context(snapshot)
        if not handed.state:
            away = check_store(context, snapshot, ssd, store)
            if away:
                log.warning("%s", away)
        task = task_folder(request, snapshot)
        budget_bytes = memory_bytes(request, task)
        if ssd is not None:
            shared_tier(ssd).start()
        shutdown = Shutdown(forced=True)
        source = with_cache_cluster(
            tiered_reader(snapshot.dataset, store, ssd, ExpectedFiles(snapshot)), cache_cluster
        )
        memory = NodeMemory.open(
            task,
            PeerSource(source, task),
            budget_bytes=budget_bytes,
            policy=request.eviction or "uniform",
            lead=True,
            peers=peers,
        )
        parts.callback(lambda: memory.close(shutdown.left_s(CLOSE_S)))
        if peers is not None and memory.task_statistics() is None:
            log.warning(
                "no peers: the master of task %s is another process, which has no peers",
                task.path.name,
            )
        warm_up = None
        if ssd is not None and ssd.warmup:
            warm_up = BackgroundWarmUp(store, snapshot.dataset, ssd, cache_cluster)
            parts.callback(lambda: warm_up.close(shutdown.left_s(WARM_UP_CLOSE_S)))
            warm_up.load(snapshot)
        goodbye_s = partial(shutdown.left_s, GOODBYE_S)
        lease = parts.enter_context(LeaseKeeper(store, snapshot.dataset, goodbye_s=goodbye_s))
        lease.serve(snapshot.generation)
        options = replace(
            mount_options(context, request),
            task_folder=task.path,
            memory_bytes=budget_bytes,
            preload_bytes=budget_bytes if request.preload else 0,
            sharing_key=sharing_key(context, request, snapshot.path),
        )
        observed = Observed(
            store=store.statistics,
            peers=lambda: peer_statistics(memory),
            ssd=lambda: ssd_tier_statistics(ssd, warm_up),
            cache_cluster=lambda: cache_cluster_statistics(source),
        )
        run_mount(snapshot, memory, options, handed, observed, shutdown)


def _snapshot(context: CommandContext, request: MountRequest, handed: Handed) -> Snapshot | None:
    """Return the snapshot that this server serves.

    None means that a refresh found no newer snapshot, or refused it.
    """
    from dieselfs.fuse.supervision.supervisor import Role
    from dieselfs.snapshots.lifecycle import find_newer
    from metadata.errors import SnapshotRefused
    from metadata.snapshot import Snapshot

    path = Path(handed.state.get("snapshot") or request.snapshot or "")
    shown = opened(path, request)
    if handed.role is not Role.REFRESH:
        return shown
    with shown:
        try:
            found = find_newer(shown, path.parent, context.store())
            if found is not None and found.dataset != shown.dataset:
                raise SnapshotRefused(f"snapshot {found.id} is of another dataset: {found.path}")
            if found is not None:
                Snapshot.verify(found.path)
        except Exception as error:
            log.exception("the mount is not refreshed")
            handed.refused(str(error) or type(error).__name__)
            return None
    if found is None:
        log.info("the mount is not refreshed: snapshot %s is the newest", shown.id)
        handed.refused(None)
    return found


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )

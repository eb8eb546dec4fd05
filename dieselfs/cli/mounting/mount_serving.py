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
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chunkstore.errors import ChunkStoreError
from dieselfs.cache.jobs.job_name import names_callers
from dieselfs.cli.command import log_to_stderr
from dieselfs.cli.command_context import CommandContext
from dieselfs.fuse.starting.mount_request import (
    MountRequest,
    daemon_command,
    names_file,
    sharing_key,
)
from dieselfs.fuse.starting.mount_settings import (
    check_memory,
    mount_options,
    opened,
    read_settings,
    told_job,
)

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.allocation.readers.caller_jobs import CallerJobs
    from dieselfs.allocation.readers.job_allocations import JobAllocations
    from dieselfs.allocation.readers.observed import JobProgress
    from dieselfs.cache.jobs.reader_jobs import ReaderJobs
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.fuse.mount import MountReaders
    from dieselfs.fuse.supervision.handover import Handed
    from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_LEASE_S: Final = 2.0
"""The time that the start of a mount waits for its lease. A store that is down delays no longer."""
_JOBS_CLOSE_S: Final = 1.0
"""The time at the end of a mount for taking its job record back."""


def serve(context: CommandContext, request: MountRequest, choose: Callable[[], Path]) -> None:
    """Mount, and return when the mount has ended.

    If it did not end in order, this ends the process with an exit code.
    """
    from dieselfs.fuse.mounts.mountpoint import check_mountable
    from dieselfs.fuse.supervision.supervisor import UPGRADE_VARIABLE, Supervisor

    log_to_stderr()
    if UPGRADE_VARIABLE not in os.environ:
        check_mountable(request.mountpoint, request.nonempty)
    if not names_file(request):
        check_memory(request)
        command = daemon_command(context.config, request, choose())
        os.execv(command[0], command)
    program = daemon_command(context.config, request, Path(request.snapshot or ""))
    status = Supervisor(partial(_serve, context, request), program).run()
    if status:
        sys.exit(status)


def _serve(context: CommandContext, request: MountRequest, handed: Handed) -> int:
    """Run one server, in a process of its own, and return its exit code."""
    from dieselfs.cli.rendering.exit_codes import explain, report
    from dieselfs.fuse.supervision.handover import Role

    try:
        _run_server(context, request, handed)
    except Exception as error:
        log.debug("the server ends", exc_info=True)
        failure = explain(error)
        report(failure, as_json=context.output.json)
        if handed.role is Role.REFRESH and not handed.has_kept:
            # The caller of the refresh reads it in `refresh.json`.
            with suppress(OSError):
                handed.refused(str(failure))
            return 0
        return failure.code
    return 0


def _run_server(context: CommandContext, request: MountRequest, handed: Handed) -> None:
    from dieselfs.allocation.readers.job_progress_meter import JobProgressMeter, stored_bytes
    from dieselfs.cache.ports.process_heap import keep_heap_small
    from dieselfs.cache.read_stack import ReadStack, peer_statistics
    from dieselfs.cache.task.node_memory import CLOSE_S
    from dieselfs.fuse.mount import run_mount
    from dieselfs.fuse.starting.store_probe import check_store
    from dieselfs.fuse.supervision.handover import Role
    from dieselfs.fuse.supervision.shutdown import Shutdown
    from dieselfs.housekeeping.lease_keeper import GOODBYE_S, LeaseKeeper
    from dieselfs.snapshots.expected_files import ExpectedFiles
    from dieselfs.snapshots.freshness import FreshnessWatch

    keep_heap_small()
    settings = read_settings(context.config, request)
    with ExitStack() as parts:
        store = context.store(request.patience_s)
        snapshot = _snapshot(context, request, handed)
        if snapshot is None:
            return
        parts.enter_context(snapshot)
        if not handed.state:
            away = check_store(context.config, snapshot, settings.ssd, store)
            if away:
                log.warning("%s", away)
        shutdown = Shutdown(forced=True)
        budget_bytes = settings.budget_bytes(snapshot.dataset)
        settings = replace(settings, memory_bytes=budget_bytes)
        job = told_job(context.config, request, settings)
        jobs = None if job is None else _jobs(context, job, settings, snapshot)
        tags = None
        if jobs is not None:
            parts.callback(lambda: jobs.close(shutdown.left_s(_JOBS_CLOSE_S)))
            tags = jobs.tags
        stack = ReadStack(snapshot.dataset, store, settings, ExpectedFiles(snapshot), tags)
        parts.callback(lambda: stack.close(shutdown.left_s))
        if jobs is not None and stack.recording is not None:
            jobs.tell(stack.recording)
        allocations = stack.allocations
        assert allocations is not None
        allocation = allocations.own
        assert allocation is not None
        shutdown.when_begun(allocations.release)
        memory = stack.open_memory(lead=True)
        parts.callback(lambda: memory.close(shutdown.left_s(CLOSE_S)))
        stack.warm_up(snapshot)
        goodbye_s = partial(shutdown.left_s, GOODBYE_S)
        lease = parts.enter_context(LeaseKeeper(store, snapshot.dataset, goodbye_s=goodbye_s))
        lease.serve(snapshot.generation)
        is_first = handed.role in (Role.FIRST, Role.REFRESH)
        if is_first and lease.is_written(snapshot.generation, _LEASE_S):
            _check_chunks(store, snapshot)
        watch = parts.enter_context(
            FreshnessWatch(
                store, snapshot.dataset, snapshot.generation, os.fspath(request.mountpoint)
            )
        )
        options = replace(
            mount_options(context.config, request),
            task_folder=stack.folder.path,
            memory_bytes=budget_bytes,
            preload_bytes=budget_bytes if request.preload else 0,
            sharing_key=sharing_key(context.config, request, snapshot.path, job),
        )
        observed = {
            "freshness": watch.freshness,
            "store": store.statistics,
            "peers": lambda: peer_statistics(memory),
            "ssd": stack.ssd_statistics,
            "cache_cluster": stack.cache_cluster_statistics,
            "allocation": allocation.statistics,
        }

        callers = _callers(context, request, allocations)

        def begin(readers: MountReaders) -> None:
            if jobs is not None:
                jobs.begin(readers.followed, readers.bytes_read)
            meter = JobProgressMeter(readers.followed, readers.bytes_read, readers.waited_s)

            def progress() -> JobProgress:
                if callers is not None:
                    callers.sweep()
                return meter()

            allocation.reads(stored_bytes(snapshot), progress)
            allocations.reads(stored_bytes(snapshot))
            allocation.begin()

        run_mount(
            *(snapshot, memory, options, handed, observed, shutdown, stack.whereabouts),
            begin=begin,
            payer_of=None if callers is None else callers.payer,
        )


def _check_chunks(store: ObjectStore, snapshot: Snapshot) -> None:
    """Raise `Conflict` if a purge has deleted chunks before the mount's lease protected them."""
    from dieselfs.snapshots.replacement import check_not_replaced

    try:
        check_not_replaced(store, snapshot)
    except (ChunkStoreError, OSError) as error:
        log.info("cannot tell if a purge has replaced snapshot %s: %s", snapshot.id, error)


def _callers(
    context: CommandContext, request: MountRequest, allocations: JobAllocations
) -> CallerJobs | None:
    """Return the jobs of those who read through the mount; None: it has one job itself."""
    if not names_callers(request.job, context.config.job):
        return None
    from dieselfs.allocation.readers.caller_jobs import CallerJobs

    return CallerJobs(allocations)


def _jobs(
    context: CommandContext, job: str, settings: ReadSettings, snapshot: Snapshot
) -> ReaderJobs:
    """Return what publishes for the mount's readers."""
    ssd = settings.ssd
    from dieselfs.cache.jobs.reader_jobs import ReaderJobs
    from dieselfs.cache.ssd.settings import shared_tier

    return ReaderJobs(
        job,
        snapshot,
        context.config.index.value,
        policies=None if ssd is None else shared_tier(ssd).policies,
        buckets="dataset" if ssd is None else ssd.choice.buckets,
        has_cluster=settings.cache_cluster is not None,
    )


def _snapshot(context: CommandContext, request: MountRequest, handed: Handed) -> Snapshot | None:
    """Return the snapshot that this server serves.

    None means that a refresh found no newer snapshot, or refused it.
    """
    from dieselfs.fuse.supervision.handover import Role
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

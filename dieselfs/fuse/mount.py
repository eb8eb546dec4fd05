"""A mount from beginning to end, in the foreground of its process. One process can hold one mount.

It ends when it is unmounted or on SIGINT, SIGTERM or SIGHUP: requests in flight are answered, for at
most `GRACE_S`, and then the mount is detached, whoever still uses it. All of it shares one deadline (`dieselfs.ending`). SIGUSR1 makes it look for a newer snapshot.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import pyfuse3
import trio

from chunkstore.chunk_id import ChunkId
from dieselfs.ending import Ending
from dieselfs.errors import MountError
from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.connection import until_lost
from dieselfs.fuse.control_documents import dataset_document, statistics_document
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_names import (
    CONTROL_NAME,
    DATASET_NAME,
    REFRESH_NAME,
    STATISTICS_NAME,
)
from dieselfs.fuse.epochs import Epochs
from dieselfs.fuse.fast_path import STOP_TIMEOUT_S, FastPath
from dieselfs.fuse.file_reader import CachedSource, FileReader
from dieselfs.fuse.guardian import Guardian, start_guardian
from dieselfs.fuse.lister import Lister
from dieselfs.fuse.mount_plans import MountPlans, TaskMemory
from dieselfs.fuse.mount_table import entry_at
from dieselfs.fuse.mountpoint import prepare, resolve, unmount
from dieselfs.fuse.operations import MountOperations
from dieselfs.fuse.preload import preload
from dieselfs.fuse.readahead import widen_readahead
from dieselfs.fuse.readiness import announce_ready
from dieselfs.fuse.refresh import NewerSnapshot, Refresher
from dieselfs.fuse.shuffle_lists import ShuffledOrder, ShuffleLists
from dieselfs.fuse.storing_ahead import StoringAhead
from dieselfs.plan.requirement import require_room_for
from dieselfs.shuffle import ShuffleParameters
from dieselfs.worker_threads import WorkerThreads
from metadata.snapshot import ROOT, Snapshot

log = logging.getLogger(__name__)

GRACE_S: Final = 2.5
"""For requests in flight when the mount is told to end."""
_BRIEFLY_S: Final = 0.2
_READING_THREADS: Final = 32
_OTHER_THREADS: Final = 4
"""For what is asked of the control directory: it is answered while all reads wait for a store."""
_MIN_TASKS: Final = 8  # waiting tasks that pyfuse3 keeps instead of starting one per request
_MAX_TASKS: Final = 256
"""Above what the kernel sends at a time (`guardian_process.MAX_BACKGROUND`): READs of what is in memory pass those that wait for a store."""
_FUSE_DEVICE: Final = Path("/dev/fuse")


class MountMemory(CachedSource, TaskMemory, Protocol):
    """What a mount reads from: `dieselfs.node_memory.node_memory.NodeMemory`."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Where and how to mount."""

    mountpoint: Path
    store_url: str = ""
    """Shown, without its secrets, in `.dieselfs/dataset.json`."""
    allow_other: bool = False
    """Let other users in; as an ordinary user this needs `user_allow_other` in /etc/fuse.conf."""
    uid: int | None = None
    """Owner of everything in the mount; the mounting user by default."""
    gid: int | None = None
    nonempty: bool = False
    """Mount over what the directory holds."""
    plain: bool = False
    """Without the fast path: every request is answered in Python."""
    preload_bytes: int = 0
    """How much to fetch into memory at the beginning; `source` must have room for it."""
    task_folder: Path | None = None
    """Of the node memory that `source` is: where readers write their plans. None: none is followed."""
    memory_bytes: int = 0
    """For node memory and what plans store in the page cache, together."""
    shuffle: ShuffleParameters | None = None
    """The order that will be read: it is followed from the beginning."""
    store_ahead_bytes: int | None = None
    """Most that the page cache may hold of files stored ahead; None: a share of the free memory, 0: store none."""

    @property
    def owner(self) -> Owner:
        return Owner(
            os.getuid() if self.uid is None else self.uid,
            os.getgid() if self.gid is None else self.gid,
        )


def check_mountable(options: MountOptions) -> None:
    """Raise `MountError` for what can be seen beforehand; clear away a mount whose daemon has died.

    `run_mount` does it too; a background start does it first, to fail in the user's terminal.
    """
    if not _FUSE_DEVICE.exists():
        raise MountError(
            f"{_FUSE_DEVICE} is missing",
            "load the module (modprobe fuse); a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        )
    prepare(resolve(options.mountpoint), options.nonempty)


def run_mount(
    snapshot: Snapshot,
    source: MountMemory,
    options: MountOptions,
    *,
    newer: NewerSnapshot = lambda shown: None,
    on_ready: Callable[[], None] = lambda: None,
    store_statistics: Callable[[], object] = lambda: None,
    peer_statistics: Callable[[], object] = lambda: None,
    ssd_statistics: Callable[[], object] = lambda: None,
    ring_statistics: Callable[[], object] = lambda: None,
    serving: Callable[[int], None] = lambda generation: None,
    ending: Ending | None = None,
) -> None:
    """Mount, serve until the mount ends, unmount. Call it from the main thread, which gets the signals.

    `newer` is asked on SIGUSR1, in a worker thread; `source` must have the chunks of what it finds too. `store_statistics`, `peer_statistics`,
    `ssd_statistics` and `ring_statistics` give those of the store, of the task's peer cache, of this process's SSD tier and of the cache nodes as it sees them, for `stats.json`; `serving` hears of each generation before it is shown. `on_ready` is called once the mount has answered a request through the kernel. `ending` says how long the end may take, to the caller too, who has more to end than the mount. `snapshot` and `source` stay the caller's, to close afterwards. Raises
    `MountError` if the mount can't be made, `PlanTooLarge` if its memory is too small for the order that will be read.
    """
    check_mountable(options)
    if options.shuffle is not None:
        require_room_for(snapshot, options.shuffle, options.memory_bytes)
    mountpoint = resolve(options.mountpoint)
    parts = _assemble(
        snapshot,
        source,
        options,
        newer,
        mountpoint,
        store_statistics,
        peer_statistics,
        ssd_statistics,
        ring_statistics,
        ending or Ending(),
    )
    # Readers may hold what was shown before a refresh until the mount ends.
    parts.epochs.listen(lambda epoch, shown: serving(shown.generation))
    trio.run(_mounted, parts, options, fuse_options(snapshot, options), mountpoint, on_ready)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a mount is made of."""

    operations: MountOperations
    epochs: Epochs
    source: MountMemory
    refresher: Refresher
    threads: WorkerThreads
    fast_path: FastPath
    storing_ahead: StoringAhead
    plans: MountPlans | None
    ending: Ending


def _assemble(
    snapshot: Snapshot,
    source: MountMemory,
    options: MountOptions,
    newer: NewerSnapshot,
    mountpoint: Path,
    store_statistics: Callable[[], object],
    peer_statistics: Callable[[], object],
    ssd_statistics: Callable[[], object],
    ring_statistics: Callable[[], object],
    ending: Ending,
) -> _Parts:
    threads = WorkerThreads(_OTHER_THREADS)
    reader = FileReader(source, WorkerThreads(_READING_THREADS))
    epochs = Epochs(snapshot, options.owner)
    epochs.listen(_warn_of_hidden_name)
    refresher = Refresher(epochs, newer)
    started_ns, started = time.time_ns(), time.monotonic()
    counts: dict[str, int] = {}
    fast_path = FastPath(wanted=not options.plain)
    plans = None
    if options.task_folder is not None:
        plans = MountPlans(
            source,
            options.task_folder,
            epochs,
            fast_path,
            mountpoint,
            options.memory_bytes,
            stores_ahead=options.store_ahead_bytes != 0,
        )

    def statistics() -> bytes:
        return statistics_document(
            counts,
            reader.statistics(),
            source.statistics(),
            time.monotonic() - started,
            fast_path.statistics(),
            None if plans is None else plans.statistics(),
            store_statistics(),
            control.reads,
            peer_statistics(),
            ssd_statistics(),
            ring_statistics(),
        )

    def dataset() -> bytes:
        return dataset_document(
            refresher.shown, options.store_url, _shown(options), started_ns, options.task_folder
        )

    control = ControlDirectory(
        {DATASET_NAME: dataset, STATISTICS_NAME: statistics, REFRESH_NAME: refresher.document},
        ShuffleLists(threads),
        lambda: epochs.current.snapshot,
        options.owner,
        plans,
    )
    return _Parts(
        MountOperations(epochs, reader, control, counts, plans),
        epochs,
        source,
        refresher,
        threads,
        fast_path,
        StoringAhead(fast_path, source, options.store_ahead_bytes),
        plans,
        ending,
    )


def _warn_of_hidden_name(epoch: int, snapshot: Snapshot) -> None:
    if snapshot.lookup(ROOT, CONTROL_NAME) is not None:
        log.warning("the dataset's own %r is hidden by the control directory", CONTROL_NAME)


def _shown(options: MountOptions) -> dict[str, object]:
    owner = options.owner
    return {
        "mountpoint": os.fspath(options.mountpoint),
        "allow_other": options.allow_other,
        "uid": owner.uid,
        "gid": owner.gid,
    }


def fuse_options(snapshot: Snapshot, options: MountOptions) -> set[str]:
    """What libfuse is told."""
    # A comma would end the option, and libfuse takes ASCII only.
    source = quote(f"dieselfs:{snapshot.dataset.name}@{snapshot.id}", safe=":@/-_.~+=")
    chosen = {"default_permissions", "ro", f"fsname={source}", "subtype=dieselfs"}
    return chosen | {"allow_other"} if options.allow_other else chosen


async def _mounted(
    parts: _Parts,
    options: MountOptions,
    chosen: set[str],
    mountpoint: Path,
    on_ready: Callable[[], None],
) -> None:
    with (
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as endings,
        trio.open_signal_receiver(signal.SIGUSR1) as refreshes,
    ):
        _make_mount(parts.operations, mountpoint, chosen)
        made = entry_at(mountpoint)
        with Guardian() if options.plain else start_guardian(mountpoint) as guardian:
            try:
                await _serve(parts, options, mountpoint, endings, refreshes, on_ready)
            finally:
                ending = parts.ending
                ending.begin()  # nobody has told it if it was unmounted, or has failed
                if parts.plans is not None:
                    parts.plans.close(ending)
                # Even if the time is over: a thread that is not stuck needs a moment to come back.
                stop_s = max(_BRIEFLY_S, ending.left_s(STOP_TIMEOUT_S))
                parts.fast_path.stop(guardian.abort, stop_s)
                # Detaches also what is in use, and aborts what has not been answered.
                pyfuse3.close(unmount=True)
                if made is not None and entry_at(mountpoint) == made:
                    with suppress(MountError):
                        unmount(mountpoint, lazy=True)  # libfuse leaves what was aborted
    log.info("%s is unmounted", mountpoint)


async def _serve(
    parts: _Parts,
    options: MountOptions,
    mountpoint: Path,
    endings: Any,
    refreshes: Any,
    on_ready: Callable[[], None],
) -> None:
    async with trio.open_nursery() as nursery:
        budget_bytes = parts.storing_ahead.budget_bytes()
        if parts.fast_path.start(parts.epochs, parts.source, options.owner, budget_bytes):
            nursery.start_soon(parts.storing_ahead.run)
            lister = Lister(parts.fast_path, parts.epochs, parts.ending)
            nursery.start_soon(lister.run, mountpoint)
        else:
            parts.source.observe(_Listening())
        nursery.start_soon(_end_on_signal, endings, parts.ending, nursery.cancel_scope)
        nursery.start_soon(_end_when_lost, nursery.cancel_scope)
        nursery.start_soon(_refresh_on_signal, refreshes, parts)
        if options.shuffle is not None and parts.plans is not None:
            order = ShuffledOrder(parts.epochs.current.snapshot, options.shuffle)
            await parts.threads.run_abandonable(parts.plans.begin, order)
        if options.preload_bytes:
            snapshot = parts.epochs.current.snapshot
            nursery.start_soon(preload, snapshot, parts.source, options.preload_bytes)
        nursery.start_soon(_tell_when_ready, mountpoint, options.plain, parts.threads, on_ready)
        await pyfuse3.main(_MIN_TASKS, _MAX_TASKS)
        nursery.cancel_scope.cancel()


class _Listening:
    """A `ChunkObserver` of a mount without the fast path.

    Who observes lets go of what is evicted at once. Else a mount does so when it maps its next chunk, and what comes next has no room until then.
    """

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        pass

    def release(self, chunk: ChunkId) -> None:
        pass


def _make_mount(operations: MountOperations, mountpoint: Path, chosen: set[str]) -> None:
    complaint = ""
    try:
        with (
            _captured_stderr() as captured
        ):  # libfuse and fusermount3 give their reasons there only
            try:
                pyfuse3.init(operations, os.fspath(mountpoint), chosen)
            finally:
                captured.seek(0)
                complaint = captured.read().decode(errors="replace").strip()
    except RuntimeError as error:
        raise MountError(f"cannot mount at {mountpoint}: {complaint or error}") from None
    if complaint:
        log.warning("libfuse: %s", complaint)


@contextmanager
def _captured_stderr() -> Iterator[Any]:
    """Send what this process and its children write to file descriptor 2 to a temporary file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as captured:
            os.dup2(captured.fileno(), 2)
            try:
                yield captured
            finally:
                os.dup2(kept, 2)
    finally:
        os.close(kept)


async def _end_on_signal(signals: Any, ending: Ending, scope: trio.CancelScope) -> None:
    async for number in signals:
        log.info("%s: unmounting", signal.Signals(number).name)
        ending.begin()
        # From here pyfuse3 takes no further request; main() returns when the last one is answered.
        scope.deadline = min(scope.deadline, trio.current_time() + ending.left_s(GRACE_S))
        pyfuse3.terminate()


async def _end_when_lost(scope: trio.CancelScope) -> None:
    await until_lost()
    scope.cancel()  # no answer can reach anybody


async def _refresh_on_signal(signals: Any, parts: _Parts) -> None:
    async for _ in signals:
        before = parts.refresher.shown
        await parts.refresher.refresh()
        if parts.plans is not None and parts.refresher.shown is not before:
            await parts.threads.run_abandonable(parts.plans.go_over, parts.refresher.shown)


async def _tell_when_ready(
    mountpoint: Path, plain: bool, threads: WorkerThreads, on_ready: Callable[[], None]
) -> None:
    # In a thread: the answer comes from this very process.
    await threads.run_abandonable(os.stat, mountpoint)
    if not plain:
        widen_readahead(mountpoint)
    log.info("%s is mounted", mountpoint)
    on_ready()
    announce_ready()

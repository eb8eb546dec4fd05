"""One server of a mount, from its beginning to its end.

A supervisor starts it, and another one when it dies (`supervisor`).

It serves one snapshot, through the front that was chosen (`front_choice`): EROFS with a blob behind
it (`erofs_front`), or a FUSE tree (`tree_server`). Its main thread waits for what ends it: the
kernel has released the mount; SIGTERM, on which it unmounts; or the supervisor reports that another
server has taken over.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.control.control_documents import (
    ServerStatistics,
    dataset_document,
    encoded,
    statistics_document,
)
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.foreign_plans import ForeignPlans
from dieselfs.fuse.fronts.front_parts import MountOptions
from dieselfs.fuse.fronts.made_front import MadeFront, make_front
from dieselfs.fuse.mount_plans import MountPlans, TaskMemory
from dieselfs.fuse.mounts.control_names import (
    CONTROL_NAME,
    DATASET_NAME,
    REFRESH_NAME,
    SNAPSHOT_NAME,
    STATISTICS_NAME,
)
from dieselfs.fuse.mounts.daemon_names import SERVER, announced
from dieselfs.fuse.mounts.mountpoint import check_mountable, resolve
from dieselfs.fuse.page_cache import PageCache
from dieselfs.fuse.pages.page_statistics import (
    FillStatistics,
    PageCacheStatistics,
    PlannedPagesStatistics,
)
from dieselfs.fuse.requests.file_reader import CachedSource, FileReader, PayerOf
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.requests.read_failures import path_of_file
from dieselfs.fuse.supervision.descriptor_room import require_descriptors
from dieselfs.fuse.supervision.handover import Handed, Role
from dieselfs.fuse.supervision.shutdown import Shutdown
from dieselfs.prefetch.preload import Preload
from dieselfs.prefetch.requirement import require_room_for
from dieselfs.prefetch.window import FollowedOrder
from dieselfs.shuffle.shuffle_lists import ListedOrder, ShuffleLists
from metadata.snapshot import ROOT, Snapshot

log = logging.getLogger(__name__)

GRACE_S: Final = 2.5
"""The time for requests in flight when the mount is stopped."""
_DESCRIPTORS: Final = 40
"""The descriptors that a server opens for its front and behind it, with some for store calls."""
_MADE_TIMEOUT_S: Final = 60.0
_STOPPED: Final = "stopped by a signal"
_UNMOUNTED: Final = "unmounted"
_REPLACED: Final = "another server has taken over"
_STATE_EVERY_S: Final = 1.0


class MountMemory(CachedSource, TaskMemory, Protocol):
    """The source of a mount's bytes: `dieselfs.cache.task.node_memory.NodeMemory`."""


Observed: TypeAlias = Mapping[str, Callable[[], object]]
"""Functions that return the statistics of the tiers behind a mount, by their names in `stats.json`.

Each gives a dataclass or None. The names are freshness, store, peers, ssd, cache_cluster and
allocation.
"""


@dataclass(frozen=True, slots=True)
class MountReaders:
    """The readers of a mount, for those who publish what they read."""

    followed: Callable[[], FollowedOrder | None]
    """Returns the order that is followed now."""
    bytes_read: Callable[[], int]
    """Returns the bytes that they have requested; warm reads make no request."""
    waited_s: Callable[[], float]
    """Returns the seconds that their requests have waited."""


NOTHING_OBSERVED: Final[Observed] = dict.fromkeys(
    ("freshness", "store", "peers", "ssd", "cache_cluster", "allocation"), lambda: None
)


def run_mount(
    snapshot: Snapshot,
    source: MountMemory,
    options: MountOptions,
    handed: Handed,
    observed: Observed,
    shutdown: Shutdown,
    whereabouts: Callable[[FileExtent], Any] | None = None,
    begin: Callable[[MountReaders], None] | None = None,
    payer_of: PayerOf | None = None,
) -> None:
    """Serve until the mount ends, or another server takes over.

    Call it from the main thread, which gets the signals. `snapshot` and `source` stay the caller's,
    to close afterwards; `shutdown` bounds the time for that. `whereabouts` answers `dlcmd why`.
    `begin` is called before the first read, to publish what is read. `payer_of` says what pays for
    a caller's misses; None: the mount's own job. Raises `MountError` if the
    mount cannot be made, and `PlanTooLarge` if its memory is too small for the order that will be
    read.
    """
    if handed.role is Role.FIRST:
        check_mountable(options.mountpoint, options.nonempty)
    if handed.role is Role.REFRESH:
        require_descriptors(_DESCRIPTORS)  # afterwards it would fail when it is shown already
    if options.shuffle is not None:
        require_room_for(snapshot, options.shuffle, options.memory_bytes)
    if snapshot.lookup(ROOT, CONTROL_NAME) is not None:
        log.warning("the dataset's own %r is hidden by the control directory", CONTROL_NAME)
    server = _Server(snapshot, source, options, handed, observed, shutdown, whereabouts, payer_of)
    if begin is not None:
        begin(server.readers())
    server.run()


class _Server:
    """The parts of a server."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: MountMemory,
        options: MountOptions,
        handed: Handed,
        observed: Observed,
        shutdown: Shutdown,
        whereabouts: Callable[[FileExtent], Any] | None,
        payer_of: PayerOf | None,
    ) -> None:
        self._whereabouts = whereabouts
        self._snapshot, self._source, self._options = snapshot, source, options
        self._handed, self._observed, self._shutdown = handed, observed, shutdown
        self._mountpoint = resolve(options.mountpoint)
        self._refreshes = handed.refreshes
        self._started = time.monotonic()
        self._supervisor_pid = os.getppid()
        """0 when it has ended."""
        resumes = handed.role in (Role.RESUME, Role.UPGRADE)
        self._mounted_ns: int = handed.state["mounted_ns"] if resumes else time.time_ns()
        self._ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reads = PendingReads()
        self._reader = FileReader(
            *(source, self._reads, self._is_prefetching, partial(path_of_file, snapshot)),
            payer_of=payer_of,
        )
        self._pages = PageCache(snapshot, source, self._mountpoint, options.prefill_bytes)
        self._foreign_plans = ForeignPlans(snapshot) if options.foreign_plans else None
        self._plans = self._make_plans()
        self._control = ControlDirectory(
            {
                DATASET_NAME: self._dataset_document,
                STATISTICS_NAME: self._statistics_document,
                REFRESH_NAME: lambda: encoded(self._refreshes),
                SNAPSHOT_NAME: lambda: snapshot.content,
            },
            ShuffleLists(),
            snapshot,
            self._plans,
            self._foreign_plans if self._plans is not None else None,
            None if whereabouts is None else self._why_document,
            payer_of,
        )
        self._front: MadeFront | None = None
        self._name: socket.socket | None = None
        """The name by which this process is found if it does not answer."""
        self._has_front = threading.Event()

    def _make_plans(self) -> MountPlans | None:
        options = self._options
        if options.task_folder is None:
            return None
        return MountPlans(
            self._source,
            options.task_folder,
            self._snapshot,
            self._mountpoint,
            options.memory_bytes,
            self._pages.make_filler if options.prefill_bytes != 0 else None,
            lambda: self._made_front().read_names_ahead(),
            self._foreign_plans,
        )

    def readers(self) -> MountReaders:
        return MountReaders(
            lambda: None if self._plans is None else self._plans.followed(),
            lambda: self._reader.statistics().bytes_read,
            lambda: self._reader.statistics().waited_s,
        )

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._ends.put(_STOPPED))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # the supervisor handles it
        front = self._front = make_front(
            self._snapshot,
            self._options,
            self._mountpoint,
            self._handed,
            self._reader,
            self._control,
            note_read=self._pages.note_read,
            on_end=lambda: self._ends.put(_UNMOUNTED),
        )
        self._has_front.set()
        if self._handed.role is Role.REFRESH:  # paths lead to it: another server must follow it
            self._handed.keep(self._state(), **front.descriptors)
        self._pages.start(front, self._is_order_known, self._note_miss)
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()
        preload = self._begin()
        log.info("%s is mounted: %s", self._mountpoint, front.choice.reason)
        self._name = announced(front.state, SERVER)
        kept = self._state()
        self._handed.keep(kept, **front.descriptors)
        self._handed.is_ready()
        reason = self._reason_to_end(kept)
        log.info("%s: %s", self._mountpoint, reason)
        self._end(front, preload, reason)

    def _reason_to_end(self, kept: dict[str, Any]) -> str:
        """Wait for the reason to end, and return it.

        Meanwhile the supervisor gets the state for the next server whenever that has changed.
        """
        while True:
            try:
                return self._ends.get(timeout=_STATE_EVERY_S)
            except queue.Empty:
                assert self._front is not None
                self._front.check_mounts()
                state = self._state()
            if state != kept:
                kept = state
                with suppress(OSError):  # without a supervisor there is no next server
                    self._handed.keep(kept)

    def _begin(self) -> Preload | None:
        """Start readahead and prefetching; return the preload, if there is one."""
        options = self._options
        if self._plans is not None and "plans" in self._handed.state:
            plans = self._handed.state["plans"]
            if self._handed.role is Role.REFRESH:  # an announced plan is of the older snapshot
                plans = {"orders": plans.get("orders", [])}
            self._plans.resume(plans)
        elif self._plans is not None and options.shuffle is not None:
            self._plans.begin(ListedOrder(self._snapshot, options.shuffle))
        if not options.preload_bytes:
            return None
        preload = Preload(self._snapshot, self._source, options.preload_bytes)
        preload.start()
        return preload

    def _end(self, front: MadeFront, preload: Preload | None, reason: str) -> None:
        shutdown = self._shutdown
        shutdown.begin()
        if reason == _STOPPED:
            front.hide()
        if reason == _REPLACED:
            front.stop_receiving()
        if preload is not None:
            preload.stop()
        if self._plans is not None:
            self._plans.close(shutdown)
        self._pages.close(shutdown)
        front.stop_receiving()
        if reason != _UNMOUNTED:  # otherwise no reader waits for an answer
            self._reads.drain(shutdown.left_s(GRACE_S))
        if reason == _REPLACED:
            front.hand_over()
        self._reads.close()
        front.close()

    def _listen(self) -> None:
        """Receive messages of the supervisor. If it is gone, the mount continues without one."""
        while (received := self._received()) is not None:
            message, _ = received
            self._refreshes = message.get("refreshes", self._refreshes)
            if message.get("superseded"):
                self._note_superseded()
            if message.get("retire"):
                self._ends.put(_REPLACED)
            if message.get("gone") and self._front is not None:
                self._front.note_gone()
            if message.get("left_requests") and self._front is not None:
                self._front.take_over_from_retired()
        self._supervisor_pid = 0
        log.warning("the supervisor has ended: the mount ends with this process")

    def _note_superseded(self) -> None:
        """Note that paths lead to a newer snapshot.

        Nothing is read ahead any more for readers that still have files of this one open.
        """
        if self._plans is not None:
            self._plans.end_all()
        self._pages.stop()

    def _received(self) -> tuple[dict[str, Any], list[int]] | None:
        try:
            return self._handed.channel.receive()
        except OSError:
            return None

    def _is_order_known(self) -> bool:
        return self._plans is not None and self._plans.is_filling

    def _note_miss(self, inode: int) -> None:
        if self._plans is not None:
            self._plans.note_miss(inode)

    def _is_prefetching(self) -> bool:
        return self._plans is not None and self._plans.is_prefetching

    def _state(self) -> dict[str, Any]:
        """Return the state of the mount for the next server."""
        assert self._front is not None
        return {
            "snapshot": os.fspath(self._snapshot.path),
            "mounted_ns": self._mounted_ns,
            "plans": {} if self._plans is None else self._plans.resumable(),
            **self._front.state,
        }

    def _made_front(self) -> MadeFront:
        """Return the front, when it has been made.

        The control directory may be read while the front is still being made.
        """
        self._has_front.wait(_MADE_TIMEOUT_S)
        assert self._front is not None
        return self._front

    def _dataset_document(self) -> bytes:
        options, owner = self._options, self._options.owner
        front = self._made_front()
        return dataset_document(
            self._snapshot,
            options.store_url,
            {
                "mountpoint": os.fspath(options.mountpoint),
                "allow_other": options.allow_other,
                "uid": owner.uid,
                "gid": owner.gid,
            },
            self._mounted_ns,
            options.task_folder,
            front.choice,
            options.sharing_key,
            # A supervisor may have ended a moment ago: then another process is the parent.
            pid=parent if (parent := os.getppid()) == self._supervisor_pid else os.getpid(),
        )

    def _why_document(self, inode: int) -> bytes:
        assert self._whereabouts is not None
        return encoded(asdict(self._whereabouts(self._snapshot.extent(inode))))

    def _statistics_document(self) -> bytes:
        front = self._made_front()
        plans, prefill = self._plans, self._pages
        pages = PageCacheStatistics(
            prefill.filled() + (FillStatistics() if plans is None else plans.filled()),
            PlannedPagesStatistics() if plans is None else plans.pages(),
            prefill.statistics(),
        )
        server = ServerStatistics(
            time.monotonic() - self._started,
            front.choice,
            front.counts(),
            self._control.reads,
            self._reader.statistics(),
        )
        tiers = {
            "page_cache": pages,
            "cache": self._source.statistics(),
            "plan": None if plans is None else plans.statistics(),
            "plan_sources": None if plans is None else plans.sources(),
            **{name: statistics() for name, statistics in self._observed.items()},
        }
        return statistics_document(server, tiers)

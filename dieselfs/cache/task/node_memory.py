"""A task's chunks in the shared memory of a node, as readers see them.

Node memory is a `ChunkSource` over a slower one.

Every process of the task maps the same files. A read of a mapped block is a slice: no lock, no
system call, no message. A block that is in the folder and not mapped yet is mapped, once a process.
A missing block is requested from the task's master, which fetches it once for all.

Three cases are read from the source, as the file's range alone, and counted: the master has no room
for the block, the master finds it damaged or missing, or there is no master. So of a damaged chunk
only the files that are hit cannot be read. A source that reaches other nodes' memories is asked for
the files of their chunks without a request to a full master each time (`bypass`).

The design is in docs/decisions/0006-node-memory.md; `membership` says how the master is chosen, and
what happens when it dies.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from chunkstore.after_fork import renew_after_fork
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import (
    ChunkRef,
    ChunkSource,
    FileExtent,
    FileExtents,
    ManyFilesSource,
)
from chunkstore.errors import Corrupt, NotFound
from dieselfs.cache.node.block_eviction import PolicyName
from dieselfs.cache.node.mapped_blocks import MappedBlocks
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock, blocks_of, is_whole
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.shared_source import SharedSource
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.bypass import FULL_WITH_PLAN_S, CacheBypass
from dieselfs.cache.task.leader import MemorySettings
from dieselfs.cache.task.succession import Succession
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.task.task_session import TaskSession
from dieselfs.cache.wire.local_messages import Discard, PlanProgress
from dieselfs.errors import CacheFull, DieselFSError, LocalFileError, MasterGone

log = logging.getLogger(__name__)

CLOSE_S: Final = 10.0
"""The time limit for all that is under way at the end.

A leader also deletes the chunks in this time, or leaves that to another process.
"""
LINGER_S: Final = 5.0
"""The time that a helper stays without members.

Between two epochs there may be no member for a moment: workers come and go.
"""
_ATTEMPTS: Final = 3
"""The attempts to get a block from a master.

The master may die, or evict the block before it is mapped.
"""
_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class NodeMemoryStatistics:
    """Counters of this process since it opened node memory or was forked, and those of the task."""

    hits: int
    """Reads answered from blocks that were mapped, or were found in the folder."""
    misses: int
    """Reads for which the master had to be asked, or was known to be full.

    A read that asks for several blocks counts once. Each read that is not empty is a hit or a miss.
    """
    fallbacks: int
    """Reads that bypassed node memory: no room, no master, or a damaged or missing block."""
    mapped_blocks: int
    """The current number."""
    mapped_bytes: int
    """The current number."""
    joins: int
    """The number of masters that this process has had."""
    node: MemoryStatistics | None
    """The counters of the master; None if there is no master now."""


@dataclass(slots=True)
class _SessionSettings:
    """The settings that each new master must be told again."""

    expected: Sequence[str] = ()
    used: int = 0
    plan: Path | None = None


class NodeMemory:
    """The node memory of one process. Implements `ChunkSource`, `CachedSource` and `OwnNode`.

    Thread-safe. Fork-safe: a child uses the maps of its parent, and has connections of its own. A
    pickle of it opens it again. Open it by `open`.
    """

    def __init__(self, settings: MemorySettings, source: ChunkSource, lead: bool = False) -> None:
        """Become a member when a master is first needed."""
        self._settings = settings
        self._source = source
        self._shared = source if isinstance(source, SharedSource) else None
        self._batch_source = source if isinstance(source, ManyFilesSource) else None
        self._bypass = CacheBypass(self._folder_changed_ns)
        self._blocks = MappedBlocks()
        self._whole = self._blocks.whole
        self._membership = TaskSession(settings, source, lead, self._joined, self._exchange)
        self._handling_events = threading.Lock()
        self._session = _SessionSettings()
        self._succession: Succession | None = None
        # Counted by all threads without a lock: CPython runs no other thread between the steps of
        # such an addition. A test verifies that.
        self._hits = self._misses = self._fallbacks = 0
        if self._shared is not None:
            self._shared.serve(self)
        _opened.add(self)
        renew_after_fork(self)

    @classmethod
    def open(
        cls,
        folder: TaskFolder,
        source: ChunkSource,
        *,
        budget_bytes: int | None = None,
        policy: PolicyName = "uniform",
        lead: bool = False,
        linger_s: float = LINGER_S,
        join: bool = True,
        peers: PeerSettings | None = None,
    ) -> NodeMemory:
        """Become a member of the task or its leader; without `join`, when that is first needed.

        `lead`: this process forks no user code, and leads if no other process does. Otherwise it
        starts a helper if no process leads. If `source` cannot be pickled, the memory belongs to
        this process and its forked children alone. This never fails: without a master reads go to
        `source`.

        `peers`: the leader takes part in the task's peer cache, through `source`, a `PeerSource`.
        """
        settings = MemorySettings(folder, budget_bytes, policy, linger_s, peers)
        memory = cls(settings, source, lead)
        if join:
            memory.join()
        if join and lead and peers is not None:
            memory._succession = Succession(memory._membership)
        return memory

    def join(self) -> None:
        """Become a member now, if this process is none.

        A helper that is started gets `source` as it is at this moment.
        """
        self._ask(lambda master: None)

    @property
    def folder(self) -> TaskFolder:
        """The task's folder; this process's own if its source cannot be handed to a helper."""
        return self._membership.folder

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        """Return the bytes if they are mapped or in the folder, else None. Never block.

        A block that is in the folder is mapped, which takes some 20 µs, once.
        """
        chunk = file.chunk
        if chunk.payload_bytes <= MAX_WHOLE_BYTES:
            view = self._whole(chunk.id.value)
            if view is None and not self._bypass.is_absent(chunk.id.value):
                view = self._map(CacheBlock(chunk))
            if view is None:
                return None
            self._hits += 1
            at = file.offset + start
            return view[at : at + length]
        parts = []
        for block, part in blocks_of(file, start, length):
            view = self._blocks.get(block) or self._map(block)
            if view is None:
                return None
            parts.append(view[part])
        self._hits += 1
        return _joined(parts)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """See `ChunkSource`. A hit takes about 0.3 µs."""
        view = self._whole(file.chunk.id.value)
        if view is not None:
            self._hits += 1
            at = file.offset + start
            return view[at : at + length]
        if not length:
            return _NOTHING
        if self.is_bypassed(file.chunk):
            self._misses += 1
            self._fallbacks += 1
            return self._source.read(file, start, length)
        parts, missed = [], False
        for block, part in blocks_of(file, start, length):
            view = self._find_cached(block)
            if view is None:
                self._misses += not missed
                missed = True
                view = self._load(block)
            if view is None:
                self._fallbacks += 1
                return self._source.read(file, start, length)
            parts.append(view[part])
        self._hits += not missed
        return _joined(parts)

    def read_aside(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return what `read` returns, but load no chunk: missing bytes come from the source."""
        view = self.peek(file, start, length)
        if view is None:
            self._misses += 1
            self._fallbacks += 1
            view = self._source.read(file, start, length)
        return view

    def read_many(self, files: Sequence[FileExtent]) -> list[bytes]:
        """See `ManyFilesSource`.

        Missing chunks are fetched together. Files that cannot be kept are read together, bypassing
        node memory.
        """
        columns = FileExtents.of(files)
        missing = [
            CacheBlock(chunk)
            for chunk in columns.chunks
            if chunk.payload_bytes
            and is_whole(chunk)
            and self._whole(chunk.id.value) is None
            and not self.is_bypassed(chunk)
        ]
        if len(missing) > 1:
            self.prefetch(missing)
        views: dict[int, memoryview | None] = {}
        contents, bypassing = [], []
        for at, number in enumerate(columns.which):
            chunk, length = columns.chunks[number], columns.length[at]
            content = b""
            if length and not is_whole(chunk):
                content = bytes(self.read(columns[at], 0, length))
            elif length:
                missed = False
                if number not in views:
                    views[number], missed = self._find_or_load(CacheBlock(chunk))
                view, begin = views[number], columns.offset[at]
                if view is None:
                    bypassing.append(at)
                else:
                    self._misses += missed
                    self._hits += not missed
                    content = bytes(view[begin : begin + length])
            contents.append(content)
        if bypassing:
            found = self.read_bypassing([columns[at] for at in bypassing])
            for at, content in zip(bypassing, found, strict=True):
                contents[at] = content
        return contents

    def read_bypassing(self, files: Sequence[FileExtent]) -> list[bytes]:
        """Return whole files from the source, in order.

        Use it for chunks that cannot be kept, according to `map` or `is_bypassed`.
        """
        self._misses += len(files)
        self._fallbacks += len(files)
        if len(files) > 1 and self._batch_source is not None:
            return list(map(bytes, self._batch_source.read_many(files)))
        return [bytes(self._source.read(file, 0, file.length)) for file in files]

    def is_bypassed(self, chunk: ChunkRef) -> bool:
        """Return whether files of a chunk that is not mapped are to be read from its owner.

        0.2 µs mostly.

        The reason is that there is no room for the chunk on this node.
        """
        bypass, shared = self._bypass, self._shared
        if shared is None or not bypass.is_full() or not is_whole(chunk):
            return False
        name = chunk.id.value
        if bypass.is_absent(name):
            return True
        if (
            not shared.owner_is_elsewhere(chunk.id)
            or self._find_cached(CacheBlock(chunk)) is not None
        ):
            return False
        bypass.note_absent(name)
        return True

    def suspect(self, peer: str) -> None:
        """See `OwnNode`."""
        self._ask(lambda master: master.suspect(peer))

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        """See `OwnNode`."""
        block = CacheBlock(chunk)
        view = self._find_cached(block)
        # If the chunk was not noted as another node's, the master has just refused it for lack of
        # room.
        if view is None and self._bypass.forget(chunk.id.value):
            view = self._load(block)
        return view

    def payload(self, chunk: ChunkRef) -> memoryview:
        """See `ChunkSource`."""
        view = self._obtain(CacheBlock(chunk)) if is_whole(chunk) else None
        if view is None:
            self._fallbacks += 1
            return self._source.payload(chunk)
        return view

    def map(self, block: CacheBlock) -> memoryview:
        """Return the whole block, which stays mapped until it is evicted.

        Raises `CacheFull` if it cannot be cached here, or what `ChunkSource` raises.
        """
        view = self._obtain(block)
        if view is None:
            raise CacheFull(f"node memory cannot keep block {block.name}, or is not available")
        return view

    def on_evicted(self, forget: Callable[[str], None]) -> None:
        """Call `forget` with the name of each evicted block that this process drops.

        The call comes at the latest when the process maps another block.
        """
        self._blocks.on_dropped(forget)

    def fetch(self, chunks: Sequence[ChunkRef]) -> None:
        """Return when the chunks are in node memory, ahead of their readers.

        Chunks above 16 MiB are left out: they are loaded block by block, as they are read. Raises
        `CacheFull`, `MasterGone`, or what `ChunkSource` raises.
        """
        blocks = [CacheBlock(chunk) for chunk in chunks if chunk.payload_bytes and is_whole(chunk)]
        master = self._membership.master()
        if len(blocks) > 1:
            master.prefetch(blocks)  # all are fetched at once; then each is waited for
        for block in blocks:
            master.fetch(block, ahead=True)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """Have the blocks fetched in the background, in order, as far as there is room.

        Without a master nothing happens.
        """
        self._ask(lambda master: master.prefetch(blocks))

    def discard(self, chunk: ChunkId) -> None:
        """Have a whole chunk evicted, if it is cached. Do not wait for it."""
        master = self._membership.current()
        if master is not None:
            _try(lambda: master.send_notice(Discard(str(chunk)), wait=False))

    def expect(self, chunks: Sequence[ChunkId]) -> None:
        """Expect the uses of these chunks, in order; a chunk may occur again.

        They replace what was expected before; [] ends it.
        """
        names = tuple(map(str, chunks))
        self._session.expected, self._session.used = names, 0
        self._ask(lambda master: master.expect(names))

    def progress(self, used: int) -> None:
        """Note that the first `used` of the expected uses are over. Do not wait."""
        self._session.used = used
        master = self._membership.current()
        if master is not None:
            _try(lambda: master.send_notice(PlanProgress(used), wait=False))

    def set_budget(self, budget_bytes: int) -> None:
        """Ask for this budget. The greatest budget that a connected member asks for counts."""
        self._settings = replace(self._settings, budget_bytes=budget_bytes)
        self._membership.set_budget(budget_bytes)
        self._ask(lambda master: master.set_budget(budget_bytes))

    def follow(self, plan: Path) -> None:
        """Have the master prefetch for the reader of a plan file. Raises `PlanTooLarge`."""
        self._ask(lambda master: master.follow(plan))
        self._session.plan = plan
        self._bypass.trusted_s = FULL_WITH_PLAN_S

    def statistics(self) -> NodeMemoryStatistics:
        """Return the counters, with those of the master if there is one: about 0.1 ms."""
        node = None
        master = self._membership.current()
        if master is not None:
            try:
                node = master.statistics()
            except MasterGone:
                pass
        blocks, size = self._blocks.size()
        counts = self._hits, self._misses, self._fallbacks
        return NodeMemoryStatistics(*counts, blocks, size, self._membership.joins, node)

    def task_statistics(self) -> TaskStatistics | None:
        """Return the statistics of the node's part in its task's peer cache; the master is asked.

        None: the node has no part in one, or there is no master now.
        """
        master = self._membership.current()
        try:
            return None if master is None else master.task_statistics()
        except MasterGone:
            return None

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Leave the task; end its leadership if this process has it.

        Bytes that were read stay valid; later reads go to the source. Work that does not end within
        `timeout_s` is left to the end of the process.
        """
        deadline = time.monotonic() + timeout_s
        _opened.discard(self)
        self._blocks.clear()
        self._membership.close(timeout_s)
        if self._succession is not None:
            self._succession.close(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> NodeMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeMemory, (self._settings, self._source)

    def _obtain(self, block: CacheBlock) -> memoryview | None:
        """Return the block, mapped; None if it must be read bypassing node memory.

        Raises what `ChunkSource` raises.
        """
        if not block.length:
            return _NOTHING
        view, missed = self._find_or_load(block)
        self._misses += missed
        self._hits += not missed
        return view

    def _find_or_load(self, block: CacheBlock) -> tuple[memoryview | None, bool]:
        """Return (the block as `_obtain` does, whether it was neither mapped nor in the folder)."""
        view = self._blocks.get(block)
        if view is None and self.is_bypassed(block.chunk):
            return None, True
        if view is None:
            view = self._find_cached(block)
        if view is None:
            return self._load(block), True
        return view, False

    def _find_cached(self, block: CacheBlock) -> memoryview | None:
        """Return the block if it is mapped or in the folder."""
        view = self._blocks.get(block)
        if view is None:
            if self._membership.current() is None:  # a process that maps must get the cache events
                self.join()
            view = self._map(block)
        return view

    def _load(self, block: CacheBlock) -> memoryview | None:
        """Request the block from the master; None if it must be read bypassing node memory."""
        elsewhere = self._shared is not None and self._shared.owner_is_elsewhere(block.chunk.id)
        if elsewhere and not self._bypass.may_ask():
            return None
        for _ in range(_ATTEMPTS):
            try:
                master = self._membership.master()
            except MasterGone:
                return None
            try:
                master.fetch(block)
            except CacheFull:
                if elsewhere:
                    self._bypass.note_full()
                return None
            except (LocalFileError, Corrupt, NotFound):
                return None
            except MasterGone:
                continue
            view = self._map(block)
            if view is not None:
                if elsewhere:
                    self._bypass.note_room()
                return view
        return None

    def _exchange(self, master: TaskMaster) -> None:
        """Drop the blocks that were evicted, and tell the master of maps that are gone."""
        self._handle_events(master)
        self._report_maps(master)

    def _map(self, block: CacheBlock) -> memoryview | None:
        """Map the block if its file exists. Never wait.

        At the same time pending cache events are handled and the master is told of new maps.
        """
        master = self._membership.current()
        if master is not None:
            _try(lambda: self._handle_events(master))
        view = self._blocks.map(self._membership.folder.chunks, block)
        if master is not None:
            _try(lambda: self._report_maps(master))
        return view

    def _handle_events(self, master: TaskMaster) -> None:
        if self._handling_events.acquire(blocking=False):
            try:
                for evicted, name in master.events():
                    if evicted:
                        self._blocks.drop(name)
            finally:
                self._handling_events.release()

    def _report_maps(self, master: TaskMaster) -> None:
        self._blocks.report_changes(lambda notice: master.send_notice(notice, wait=False))

    def _joined(self, master: TaskMaster) -> None:
        """Tell a new master the session settings and the maps.

        First drop the blocks that the master before has evicted without this process noticing.
        """
        self._blocks.drop_missing(self._membership.folder.chunks)
        self._blocks.report_all(master.send_notice)
        try:
            if self._session.expected:
                master.expect(self._session.expected)
                master.send_notice(PlanProgress(self._session.used))
            if self._session.plan is not None:
                master.follow(self._session.plan)
        except MasterGone:
            raise
        except DieselFSError as error:
            log.warning(
                "the new master of %s does not follow the plan: %s", self._settings.folder, error
            )

    def _ask(self, request: Callable[[TaskMaster], None]) -> None:
        """Make a request of the master; drop it if there is none."""
        try:
            request(self._membership.master())
        except MasterGone as error:
            log.debug("cannot send a request to a master: %s", error)

    def _folder_changed_ns(self) -> int:
        return os.stat(self._membership.folder.chunks).st_mtime_ns

    def renew(self) -> None:
        """Renew locks, counters and session in a forked child."""
        self._blocks.renew_locks()
        self._handling_events = threading.Lock()
        self._session = _SessionSettings()  # the parent's settings stay with the parent
        self._succession = None
        trusted_s = self._bypass.trusted_s
        self._bypass = CacheBypass(self._folder_changed_ns)
        self._bypass.trusted_s = trusted_s
        self._hits = self._misses = self._fallbacks = 0
        self._membership.renew()


def _joined(parts: Sequence[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _try(notice: Callable[[], object]) -> None:
    """Send a notice that needs no answer.

    If the master is gone, the next one is told everything again.
    """
    try:
        notice()
    except MasterGone:
        pass


_opened: weakref.WeakSet[NodeMemory] = weakref.WeakSet()


def _close_all() -> None:
    """Close all node memories at the end of a program, so that leaders remove their folders."""
    for memory in list(_opened):
        memory.close()


atexit.register(_close_all)

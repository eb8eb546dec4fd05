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
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from dieselfs.cache.node.block_eviction import PolicyName
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock, blocks_of, is_whole
from dieselfs.cache.ports.job_payers import JobPayers
from dieselfs.cache.ports.master_port import fetch_ahead
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.shared_source import SharedSource
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.bypass import FULL_WITH_PLAN_S
from dieselfs.cache.task.leader import MemorySettings
from dieselfs.cache.task.node_memory_statistics import NodeMemoryStatistics
from dieselfs.cache.task.succession import Succession
from dieselfs.cache.task.task_blocks import TaskBlocks
from dieselfs.cache.wire.local_messages import Discard, PlanProgress
from dieselfs.errors import CacheFull, MasterGone

log = logging.getLogger(__name__)

CLOSE_S: Final = 10.0
"""The time limit for all that is under way at the end.

A leader also deletes the chunks in this time, or leaves that to another process.
"""
LINGER_S: Final = 5.0
"""The time that a helper stays without members.

Between two epochs there may be no member for a moment: workers come and go.
"""
_NOTHING: Final = memoryview(b"")


class NodeMemory:
    """The node memory of one process. Implements `ChunkSource`, `CachedSource` and `OwnNode`.

    Thread-safe. Fork-safe: a child uses the maps of its parent, and has connections of its own. A
    pickle of it opens it again. Open it by `open`.
    """

    def __init__(self, settings: MemorySettings, source: ChunkSource, lead: bool = False) -> None:
        """Become a member when a master is first needed."""
        self._settings = settings
        self._source = source
        self._batch_source = source if isinstance(source, ManyFilesSource) else None
        self._blocks = TaskBlocks(settings, source, lead)
        self._whole = self._blocks.mapped.whole
        self.is_bypassed = self._blocks.is_bypassed
        """See `TaskBlocks.is_bypassed`."""
        self._membership = self._blocks.membership
        self._succession: Succession | None = None
        # Counted by all threads without a lock: CPython runs no other thread between the steps of
        # such an addition. A test verifies that.
        self._hits = self._misses = self._fallbacks = 0
        if isinstance(source, SharedSource):
            source.serve(self)
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
        job: str | None = None,
        payers: JobPayers | None = None,
    ) -> NodeMemory:
        """Become a member of the task or its leader; without `join`, when that is first needed.

        `lead`: this process forks no user code, and leads if no other process does. Otherwise it
        starts a helper if no process leads. If `source` cannot be pickled, the memory belongs to
        this process and its forked children alone. This never fails: without a master reads go to
        `source`.

        `peers`: the leader takes part in the task's peer cache, through `source`, a `PeerSource`.

        `job` pays for what this process asks for, and a leader has the budgets of all jobs in
        `payers`.
        """
        settings = MemorySettings(folder, budget_bytes, policy, linger_s, peers, job, payers)
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
        self._blocks.ask(lambda master: None)

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
            if view is None and not self._blocks.bypass.is_absent(chunk.id.value):
                view = self._blocks.map(CacheBlock(chunk))
            if view is None:
                return None
            self._hits += 1
            at = file.offset + start
            return view[at : at + length]
        parts = []
        for block, part in blocks_of(file, start, length):
            view = self._blocks.mapped.get(block) or self._blocks.map(block)
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
            view = self._blocks.find(block)
            if view is None:
                self._misses += not missed
                missed = True
                view = self._blocks.load(block)
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
                    views[number], missed = self._blocks.find_or_load(CacheBlock(chunk))
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

    def suspect(self, peer: str) -> None:
        """See `OwnNode`."""
        self._blocks.ask(lambda master: master.suspect(peer))

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        """See `OwnNode`."""
        block = CacheBlock(chunk)
        view = self._blocks.find(block)
        # If the chunk was not noted as another node's, the master has just refused it for lack of
        # room.
        if view is None and self._blocks.bypass.forget(chunk.id.value):
            view = self._blocks.load(block)
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
        self._blocks.mapped.on_dropped(forget)

    def unmap_evicted(self) -> None:
        """Unmap the blocks that were evicted. It takes 0.1 µs mostly."""
        self._blocks.unmap_evicted()

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        """Return when the blocks are in node memory, ahead of their readers.

        Raises `CacheFull`, `MasterGone`, or what `ChunkSource` raises.
        """
        fetch_ahead(self._membership.master(), blocks)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """Have the blocks fetched in the background, in order, as far as there is room.

        Without a master nothing happens.
        """
        self._blocks.ask(lambda master: master.prefetch(blocks))

    def discard(self, chunk: ChunkId) -> None:
        """Have a whole chunk evicted, if it is cached. Do not wait for it."""
        self._blocks.tell(Discard(str(chunk)))

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        """Expect the uses of the blocks with these names, in order; a name may occur again.

        They replace what was expected before; [] ends it. They need `window_bytes` of node memory
        at least, which a quota does not take away.
        """
        session = self._blocks.session
        session.expected, session.used = names, 0
        if window_bytes != session.window_bytes:
            session.window_bytes = window_bytes
            self._tell_quota()
        self._blocks.ask(lambda master: master.expect(names))

    def progress(self, used: int) -> None:
        """Note that the first `used` of the expected uses are over. Do not wait."""
        self._blocks.session.used = used
        self._blocks.tell(PlanProgress(used))

    def set_budget(self, budget_bytes: int) -> None:
        """Ask for this budget. The greatest budget that a connected member asks for counts."""
        self._settings = replace(self._settings, budget_bytes=budget_bytes)
        self._membership.set_budget(budget_bytes)
        self._blocks.ask(lambda master: master.set_budget(budget_bytes))

    def set_quota(self, quota_bytes: int | None) -> None:
        """Keep to what is allocated to the dataset; None: no quota is known any more.

        What is cached stays. See `MasterPort.set_quota`.
        """
        session = self._blocks.session
        if quota_bytes != session.quota_bytes:
            was_none, session.quota_bytes = session.quota_bytes is None, quota_bytes
            self._tell_quota(always=not was_none)

    @property
    def quota_bytes(self) -> int | None:
        """The bytes allocated to node memory, as this process knows them; None: no quota."""
        return self._blocks.session.quota_bytes

    def cached_bytes(self) -> int:
        """Return the bytes of node memory that are taken; 0 without a master.

        Evicted blocks are unmapped first.
        """
        self._blocks.unmap_evicted()
        try:
            master = self._membership.current()
            return 0 if master is None else master.statistics().cached_bytes
        except MasterGone:
            return 0

    def follow(self, plan: Path) -> None:
        """Have the master prefetch for the reader of a plan file. Raises `PlanTooLarge`."""
        self._blocks.ask(lambda master: master.follow(plan))
        self._blocks.session.plan = plan
        self._blocks.bypass.trusted_s = FULL_WITH_PLAN_S

    def statistics(self) -> NodeMemoryStatistics:
        """Return the counters, with those of the master if there is one: about 0.1 ms."""
        node = None
        master = self._membership.current()
        if master is not None:
            try:
                node = master.statistics()
            except MasterGone:
                pass
        blocks, size = self._blocks.mapped.size()
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
        self._blocks.mapped.clear()
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

    def _tell_quota(self, always: bool = False) -> None:
        """Tell the master of the quota if one is known, or `always`."""
        session = self._blocks.session
        if always or session.quota_bytes is not None:
            self._blocks.ask(
                lambda master: master.set_quota(session.quota_bytes, session.window_bytes)
            )

    def _obtain(self, block: CacheBlock) -> memoryview | None:
        """Return the block, mapped; None if it must be read bypassing node memory.

        Raises what `ChunkSource` raises.
        """
        if not block.length:
            return _NOTHING
        view, missed = self._blocks.find_or_load(block)
        self._misses += missed
        self._hits += not missed
        return view

    def renew(self) -> None:
        """Renew locks, counters and session in a forked child."""
        self._blocks.renew()
        self._succession = None
        self._hits = self._misses = self._fallbacks = 0


def _joined(parts: Sequence[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


_opened: weakref.WeakSet[NodeMemory] = weakref.WeakSet()


def _close_all() -> None:
    """Close all node memories at the end of a program, so that leaders remove their folders."""
    for memory in list(_opened):
        memory.close()


atexit.register(_close_all)

"""The master of a task's node memory, in the process that leads the task.

The design is in docs/decisions/0006-node-memory.md. The lock of the blocks (`block_cache`)
guards the fetches and the members too. The store is read without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chunkstore.chunk_source import ChunkSource
from chunkstore.errors import Corrupt, NotFound
from chunkstore.stores.read_turn import Payer, ReadTurn, reading
from dieselfs.cache.node.accounting import PATIENCE_S
from dieselfs.cache.node.adopted_blocks import AdoptedBlocks
from dieselfs.cache.node.background_fetching import Prefetching
from dieselfs.cache.node.block_cache import BlockCache, master_ended
from dieselfs.cache.node.block_eviction import Owns, PolicyName, nothing_owned
from dieselfs.cache.node.block_source import BlockSource
from dieselfs.cache.node.chunk_files import ChunkFiles
from dieselfs.cache.node.damaged_blocks import DamagedBlocks
from dieselfs.cache.node.member_port import MemberPort
from dieselfs.cache.node.memory_scrub import Scrubber
from dieselfs.cache.node.planned_eviction import FarthestNextUse, KnownOrder, MergedOrders
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.job_payers import JobPayers
from dieselfs.cache.ports.master_port import MemoryScrub, MemoryStatistics
from dieselfs.errors import CacheFull, LocalFileError, NotYetSupported
from dieselfs.prefetch.window import PrefetchStatistics

log = logging.getLogger(__name__)

READER_PATIENCE_S: Final = 0.005
"""The time that a reader's fetch waits for members to unmap evicted blocks.

A member that waits for a block learns at once which blocks it must unmap. Without this wait many
reads bypass a full cache under `lru`.
"""
CLOSE_S: Final = 0.5
"""The time limit for store reads that are under way at the end.

Their blocks are not kept in any case.
"""


class AlreadyLoading(CacheFull):
    """A reader of this node is fetching the block from another node.

    The other node may be waiting for this one.
    """


@dataclass(slots=True, eq=False)
class _Flight:
    """A fetch under way."""

    ahead: bool
    as_owner: bool
    """True if it waits for no node that may wait for this one."""
    turn: ReadTurn
    """Its turn at a byte budget: hurried when a reader comes to wait for the block."""
    arrived: Future[bool] = field(default_factory=Future)
    """True: the block is cached. False: the fetching thread was interrupted."""


class Master:
    """The master of one task. Thread-safe.

    `member` makes the `MasterPort` of a member; this process asks it, and its `blocks`, itself. It
    adopts the blocks that it finds in the folder, and verifies each before any process maps it. Its
    files outlive it: `Leadership.release` removes them.
    """

    def __init__(
        self,
        folder: TaskFolder,
        source: ChunkSource,
        budget_bytes: int,
        policy: PolicyName = "uniform",
        prefetchers: int = 4,
        follow: Callable[[Path, Payer | None], None] | None = None,
        planned: Callable[[], PrefetchStatistics] | None = None,
        owns: Owns | None = None,
        payers: JobPayers | None = None,
    ) -> None:
        """`budget_bytes` counts while no member asks for another budget.

        `follow` gets the paths of plan files (see `MasterPort.follow`); `planned` returns the
        statistics of their prefetching. `owns` is given if other nodes ask this one for its share.
        Then heads of chunks are kept too, if `source` is a `SharedSource`. `payers` has the budgets
        of the members' jobs.
        """
        self._source = BlockSource(source, asks_peers=owns is not None)
        files = ChunkFiles(
            folder.chunks, folder.heads if self._source.has_heads else None, folder.checksums
        )
        self.blocks = BlockCache(files, budget_bytes, policy, owns or nothing_owned)
        self._changed = self.blocks.changed
        self._follow, self._planned = follow, planned
        self._in_flight: dict[str, _Flight] = {}
        self._damage = DamagedBlocks()
        self._orders: dict[Hashable, KnownOrder] = {}
        """The uses that members expect."""
        self._payers = payers
        self._jobs: dict[Hashable, str | None] = {}
        """The jobs of the members."""
        self._prefetching = Prefetching(
            lambda block, payer: self.fetch(block, ahead=True, payer=payer), prefetchers
        )
        self._hits = self._misses = self._fetches = self._fetched_bytes = 0
        self._failed_fetches = self._prefetched = 0
        self._asked_at = time.monotonic()
        """The time of the last request for a block."""
        self.adopted = AdoptedBlocks(self.blocks)
        self._scrubber = Scrubber(self.blocks, self.adopted, self._idle_s)

    def member(self, job: str | None = None) -> MemberPort:
        """Return the port of one more member, whose job pays for it."""
        return MemberPort(self, job)

    def add_member(self, member: Hashable, job: str | None = None) -> Payer | None:
        """Note that a member has come, which asks for no budget yet; return what pays for it."""
        payer = None if self._payers is None else self._payers.join(job)
        with self._changed:
            self.blocks.budget.asked[member], self._jobs[member] = None, job
        return payer

    def fetch(
        self,
        block: CacheBlock,
        *,
        ahead: bool = False,
        as_owner: bool = False,
        payer: Payer | None = None,
    ) -> None:
        """See `MasterPort`. Raises `CacheFull` before anything is fetched.

        The first thread that asks for a block fetches it itself; the others wait. If the fetch
        fails, all of them get its error, and the next call tries again. If members are about to
        unmap blocks, the call waits for them, up to `PATIENCE_S` if `ahead`, else up to
        `READER_PATIENCE_S`.

        `as_owner`: the fetch is for the task, not for a reader of this node. Then it raises
        `AlreadyLoading` too.

        `payer` pays if this call fetches the block, and may pay if it waits for a fetch of another
        one: whichever budget lets that pass first. None: what pays for the process's own reads.
        """
        # A peer's reader has another place to ask. Members that map evicted blocks may do nothing
        # at all for minutes: waits of 0.5 s for each chunk turned 1 s into 30 s.
        patient_until = time.monotonic() + (PATIENCE_S if ahead else READER_PATIENCE_S)
        counted = ahead or as_owner
        while True:
            self.blocks.release_evicted()
            self.adopted.verify(block.name)
            with self._changed:
                self.blocks.check_open()
                self._asked_at = time.monotonic()
                there = self.blocks.holds(block)
                if not counted:
                    counted = True
                    self._hits += there
                    self._misses += not there
                if there:
                    if not ahead:
                        self.blocks.accounting.use(block.name)
                    return
                flight = self._in_flight.get(block.name)
                if flight is None:
                    self._damage.check(block.name)
                    length = block.length + self._source.head_bytes(block)
                    if not self.blocks.reserve(block.name, length, ahead, patient_until):
                        continue
                    mine = self._in_flight[block.name] = _Flight(
                        ahead,
                        as_owner or not self._source.is_elsewhere(block),
                        ReadTurn(ahead, payer),
                    )
                    break
                if as_owner and not (flight.as_owner or self._source.is_reading_store(block)):
                    raise AlreadyLoading(f"block {block.name} is being fetched from another node")
            self._wait_along(flight.turn, payer, ahead)
            if flight.arrived.result():
                return
        self._load(block, mine)

    def _wait_along(self, turn: ReadTurn, payer: Payer | None, ahead: bool) -> None:
        """Note that one more call waits for a fetch, in the line of its own job's budget."""
        if payer is None and self._payers is not None:
            payer = self._payers.payer
        own = None if self._payers is None else self._payers.payer
        if payer != (turn.payer or own):
            turn.join(None if payer is None else payer(), ahead=ahead)
        elif not ahead:
            turn.hurry()

    def budget_wait_s(self, block: CacheBlock) -> float:
        """Return about how long a fetch for the task would wait for the budget of the own job."""
        budget = None if self._payers is None else self._payers.payer()
        return 0.0 if budget is None else budget.wait_s(block.length)

    def is_loading(self, block: CacheBlock) -> bool:
        """Return whether the block is being read from the store now.

        A `fetch` that waits for it waits for no other node.
        """
        with self._changed:
            return block.name in self._in_flight and self._source.is_reading_store(block)

    def readers_wait(self) -> bool:
        """Return whether a block is being fetched for a reader, of this node or of another."""
        with self._changed:
            return any(not flight.ahead for flight in self._in_flight.values())

    def prefetch(self, blocks: Sequence[CacheBlock], payer: Payer | None = None) -> None:
        """See `MasterPort`; for `payer` see `fetch`."""
        self._prefetching.submit(blocks, payer)

    def expect(self, names: Sequence[str], *, by: Hashable = None) -> None:
        """See `MasterPort`. Orders of several members are merged by predicted time."""
        order = KnownOrder(names)
        with self._changed:
            if by is not None and by not in self.blocks.budget.asked:
                return  # the member has ended
            before = self._orders.pop(by, None)
            if before is not None:
                order.recent_uses = before.recent_uses
            if names:
                self._orders[by] = order
            self._expect()

    def progress(self, used: int, *, by: Hashable = None) -> None:
        """See `MasterPort`. A call of a member that expects nothing changes nothing."""
        with self._changed:
            if by in self._orders:
                self.blocks.accounting.progress(used, by)

    def follow(self, plan: Path, payer: Payer | None = None) -> None:
        """See `MasterPort`. Raises `NotYetSupported` if the master follows no plans."""
        if self._follow is None:
            raise NotYetSupported("this master cannot follow plans")
        self._follow(plan, payer)

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`."""
        planned = None if self._planned is None else self._planned()
        with self._changed:
            accounting = self.blocks.accounting
            return MemoryStatistics(
                budget_bytes=accounting.budget_bytes,
                cached_bytes=accounting.taken_bytes,
                blocks=len(accounting),
                hits=self._hits,
                misses=self._misses,
                fetches=self._fetches,
                fetched_bytes=self._fetched_bytes,
                failed_fetches=self._failed_fetches,
                prefetched=self._prefetched,
                prefetched_used=accounting.prefetched_used,
                prefetched_wasted=accounting.prefetched_wasted,
                evictions=accounting.evictions,
                evicted_bytes=accounting.evicted_bytes,
                not_kept=self.blocks.not_kept,
                members=len(self.blocks.budget.asked),
                window_bytes=0 if planned is None else planned.window_bytes,
                late=0 if planned is None else planned.late,
            )

    def scrub(self) -> MemoryScrub:
        """See `MasterPort`."""
        return self._scrubber.scrub()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End all fetches; threads that wait for a block get `MasterGone`.

        When this returns no file is made any more. The prefetching threads have ended, except those
        that the store keeps for longer than `CLOSE_S` or `timeout_s`.
        """
        with self._changed:
            for flight in self._in_flight.values():
                if not flight.arrived.done():
                    flight.arrived.set_exception(master_ended())
            jobs = [*self._jobs.values()]
            self._jobs.clear()
            self.blocks.close()
        self._prefetching.close(min(CLOSE_S, timeout_s))
        self._scrubber.close()
        if self._payers is not None:
            for job in jobs:
                self._payers.leave(job)

    def remove_member(self, member: Hashable) -> None:
        """Note that the member has ended."""
        with self._changed:
            if member not in self.blocks.budget.asked:
                return
            del self.blocks.budget.asked[member]
            self.blocks.budget.quotas.pop(member, None)
            self.blocks.accounting.unmap_all(member)
            if self._orders.pop(member, None) is not None:
                self._expect()
            self.blocks.settle_budget()
            job = self._jobs.pop(member, None)
        if self._payers is not None:
            self._payers.leave(job)
        self.blocks.release_evicted()

    def _expect(self) -> None:
        """Evict by the orders that members have told; without one by the policy. Lock held."""
        orders = [*self._orders.values()]
        uses = orders[0] if len(orders) == 1 else MergedOrders(self._orders)
        self.blocks.accounting.expect(FarthestNextUse(uses, self.blocks.owns) if orders else None)

    def _idle_s(self) -> float:
        """Return how long nothing has been asked for; 0 during fetches."""
        with self._changed:
            return 0.0 if self._in_flight else time.monotonic() - self._asked_at

    def _load(self, block: CacheBlock, flight: _Flight) -> None:
        """Fetch a block for which there is room.

        Raises `CacheFull` also if the file cannot be written for any other reason: the block's
        reader can do without the file.
        """
        error: BaseException | None = None
        try:
            with reading(flight.turn):
                head, data = self._source.fetch(block, flight.as_owner)
            assert len(data) == block.length
            assert head is None or len(head) == block.chunk.head_bytes
            self.blocks.store(block.name, data, head)
        except LocalFileError as failure:
            log.warning("cannot write to node memory: %s", failure)
            error = CacheFull(str(failure), failure.hint)
        except BaseException as failure:
            error = failure
        with self._changed:
            del self._in_flight[block.name]
            if error is None:
                self._fetches += 1
                self._prefetched += flight.ahead
                self._fetched_bytes += block.length
                self.blocks.keep(block.name)
            else:
                self.blocks.drop(block.name, error)
                self._failed_fetches += not isinstance(error, CacheFull)
                if isinstance(error, Corrupt | NotFound):
                    self._damage.note(block.name, error)
            self._changed.notify_all()
            if not flight.arrived.done():  # not closed meanwhile
                if isinstance(error, Exception):
                    flight.arrived.set_exception(error)
                else:
                    flight.arrived.set_result(error is None)
        self.blocks.release_evicted()
        if error is not None:
            raise error

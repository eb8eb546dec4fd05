"""The master of a task's node memory, in the process that leads the task.

The design is in docs/decisions/0006-node-memory.md. One lock guards the accounting and the names in
the folder. The store is read, and files are filled, without the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chunkstore.chunk_source import ChunkSource
from chunkstore.errors import Corrupt, NotFound
from chunkstore.stores.read_turn import Payer, ReadTurn, reading
from dieselfs.cache.node.accounting import PATIENCE_S, CacheAccounting
from dieselfs.cache.node.adopted_blocks import AdoptedBlocks
from dieselfs.cache.node.agreed_budget import AgreedBudget, MemoryQuota
from dieselfs.cache.node.background_fetching import Prefetching
from dieselfs.cache.node.block_eviction import Owns, PolicyName, nothing_owned, policy_of
from dieselfs.cache.node.block_source import BlockSource
from dieselfs.cache.node.chunk_files import ChunkFiles, FileSystemFull
from dieselfs.cache.node.known_damage import KnownDamage
from dieselfs.cache.node.member_port import MemberPort
from dieselfs.cache.node.memory_scrub import IDLE_S, SlowScrub
from dieselfs.cache.node.planned_eviction import FarthestNextUse, KnownOrder, MergedOrders
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.job_payers import JobPayers
from dieselfs.cache.ports.master_port import CacheObserver, MemoryScrub, MemoryStatistics
from dieselfs.errors import CacheFull, LocalFileError, MasterGone, NotYetSupported
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
RECYCLED_SHARE: Final = 16
"""The divisor of the budget that gives the bytes of recycled buffers.

A sixteenth of the budget may exist beside it, in files of evicted blocks, and new blocks are
written over these files.
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
    """The implementation of `MasterPort` for its own process.

    `member` makes a port for each other member. Thread-safe. It adopts the blocks that it finds in
    the folder, and verifies each before any process maps it. Its files outlive it:
    `Leadership.release` removes them.
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
        self._owns = nothing_owned if owns is None else owns
        self.chunks = folder.chunks
        """The folder of cache blocks."""
        self._files = ChunkFiles(
            folder.chunks, folder.heads if self._source.has_heads else None, folder.checksums
        )
        self._follow, self._planned = follow, planned
        self._budget = AgreedBudget(budget_bytes, time.monotonic)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Notified when a member has unmapped a block, a file is stored, or `close` is called."""
        self._policy: PolicyName = policy
        self._policy_now: PolicyName = policy
        self._accounting = CacheAccounting(
            budget_bytes, policy_of(policy, self._owns), time.monotonic
        )
        self._in_flight: dict[str, _Flight] = {}
        self._damage = KnownDamage()
        self._damaged_blocks: list[str] = []
        """The blocks that were found changed in node memory."""
        self._storing = 0
        self._orders: dict[Hashable, KnownOrder] = {}
        """The uses that members expect."""
        self._observers: tuple[CacheObserver, ...] = ()
        self._has_evicted = False
        """True if observers were told of evictions, and not yet to unmap the blocks."""
        self._payers = payers
        self._jobs: dict[Hashable, str | None] = {}
        """The jobs of the members."""
        self._prefetching = Prefetching(
            lambda block, payer: self.fetch(block, ahead=True, payer=payer), prefetchers
        )
        self._closed = False
        self._hits = self._misses = self._fetches = self._fetched_bytes = 0
        self._failed_fetches = self._prefetched = self._not_kept = 0
        for name, length in self._files.adopt().items():
            self._accounting.adopt(name, length)
        self._files.allow_recycled(budget_bytes // RECYCLED_SHARE)
        with self._lock:
            self._remove(self._accounting.shrink())
        self._adopted = AdoptedBlocks(self._files, self._accounting.names(), self._settle_adopted)
        self._asked_at = time.monotonic()
        """The time of the last request for a block."""
        self._slow_scrub = SlowScrub(self.names, self._verify_again, self._is_idle)
        self._verifying = threading.Thread(target=self._verify, name="verify", daemon=True)
        self._verifying.start()

    def member(self, job: str | None = None) -> MemberPort:
        """Return the port of one more member, whose job pays for it."""
        return MemberPort(self, job)

    def add_member(self, member: Hashable, job: str | None = None) -> Payer | None:
        """Note that a member has come, which asks for no budget yet; return what pays for it."""
        with self._lock:
            self._budget.asked[member], self._jobs[member] = None, job
        return None if self._payers is None else self._payers.join(job)

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
            self._release_evicted()
            self._adopted.verify(block.name)
            with self._lock:
                self._check_open()
                self._asked_at = time.monotonic()
                there = self._is_cached(block)
                if not counted:
                    counted = True
                    self._hits += there
                    self._misses += not there
                if there:
                    if not ahead:
                        self._accounting.use(block.name)
                    return
                flight = self._in_flight.get(block.name)
                if flight is None:
                    self._damage.check(block.name)
                    if not self._reserve(block, ahead, patient_until):
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
        with self._lock:
            return block.name in self._in_flight and self._source.is_reading_store(block)

    def readers_wait(self) -> bool:
        """Return whether a block is being fetched for a reader, of this node or of another."""
        with self._lock:
            return any(not flight.ahead for flight in self._in_flight.values())

    def shares_changed(self) -> None:
        """Note that `owns` gives other answers from now on."""
        with self._lock:
            self._accounting.regroup()

    def is_cached(self, block: CacheBlock) -> bool:
        """Return whether the block is cached."""
        with self._lock:
            return block.name in self._accounting

    def has_file(self, name: str) -> bool:
        """Return whether the block's file exists; it may still have to be verified."""
        return self._files.exists(name)

    @property
    def unverified(self) -> int:
        """The number of adopted blocks that are not verified yet."""
        return self._adopted.count

    def names(self) -> Sequence[str]:
        """Return the names of the cached blocks."""
        with self._lock:
            return self._accounting.names()

    def prefetch(self, blocks: Sequence[CacheBlock], payer: Payer | None = None) -> None:
        """See `MasterPort`; for `payer` see `fetch`."""
        self._prefetching.submit(blocks, payer)

    def mapped(self, name: str, *, by: Hashable = None) -> None:
        """See `MasterPort`. `by` is the member; None is this process."""
        with self._lock:
            if by is None or by in self._budget.asked:
                self._accounting.map(by, name)

    def unmapped(self, name: str, *, by: Hashable = None) -> None:
        """See `MasterPort`. `by` is the member; None is this process."""
        with self._changed:
            self._accounting.unmap(by, name)
            self._changed.notify_all()

    def owns(self, name: str) -> bool:
        """Return whether the block of that name is of this node's share."""
        return self._owns(name)

    def discard(self, name: str) -> None:
        """Evict the block if it is cached, also one of this node's share."""
        with self._changed:
            if self._accounting.evict(name):
                self._remove([name])
                self._changed.notify_all()
        self._release_evicted()

    def expect(self, names: Sequence[str], *, by: Hashable = None) -> None:
        """See `MasterPort`. Orders of several members are merged by predicted time."""
        order = KnownOrder(names)
        with self._lock:
            if by is not None and by not in self._budget.asked:
                return  # the member has ended
            before = self._orders.pop(by, None)
            if before is not None:
                order.recent_uses = before.recent_uses
            if names:
                self._orders[by] = order
            self._expect()

    def progress(self, used: int, *, by: Hashable = None) -> None:
        """See `MasterPort`. A call of a member that expects nothing changes nothing."""
        with self._lock:
            if by in self._orders:
                self._accounting.progress(used, by)

    def set_budget(self, budget_bytes: int, *, by: Hashable = None) -> None:
        """See `MasterPort`.

        Without `by` it sets the budget that counts while no member asks for one.
        """
        with self._changed:
            if by is None:
                self._budget.own_bytes = budget_bytes
            elif by in self._budget.asked:
                self._budget.asked[by] = budget_bytes
            self._settle_budget()
        self._release_evicted()

    def set_quota(
        self, quota_bytes: int | None, window_bytes: int = 0, *, by: Hashable = None
    ) -> None:
        """See `MasterPort`. Without `by` it is what the master's own process knows."""
        with self._changed:
            if by is not None and by not in self._budget.asked:
                return  # the member has ended
            self._budget.quotas[by] = MemoryQuota(quota_bytes, window_bytes)
            self._settle_budget()
        self._release_evicted()

    @property
    def agreed_bytes(self) -> int:
        """The bytes that members ask for, if the file system has room; a quota may allow less."""
        with self._lock:
            return self._budget.agreed_bytes

    @property
    def quota_bytes(self) -> int | None:
        """The quota in force, at least the windows of all plans; None: there is none."""
        with self._lock:
            return self._budget.quota_bytes

    def follow(self, plan: Path, payer: Payer | None = None) -> None:
        """See `MasterPort`. Raises `NotYetSupported` if the master follows no plans."""
        if self._follow is None:
            raise NotYetSupported("this master cannot follow plans")
        self._follow(plan, payer)

    def listen(self, observer: CacheObserver) -> None:
        """Tell `observer` of all evictions from now on, in order."""
        with self._lock:
            self._check_open()
            self._observers = (*self._observers, observer)

    def ignore(self, observer: CacheObserver) -> None:
        """Tell `observer` of no eviction any more."""
        with self._lock:
            self._observers = tuple(each for each in self._observers if each is not observer)

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`."""
        planned = None if self._planned is None else self._planned()
        with self._lock:
            accounting = self._accounting
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
                not_kept=self._not_kept,
                members=len(self._budget.asked),
                window_bytes=0 if planned is None else planned.window_bytes,
                late=0 if planned is None else planned.late,
            )

    def scrub(self) -> MemoryScrub:
        """See `MasterPort`. Blocks that are stored meanwhile are left out."""
        damaged = len(self._damaged_blocks)
        blocks = size_bytes = 0
        for name in self.names():
            self._adopted.verify(name)
            length = self._verify_again(name)
            blocks += length > 0
            size_bytes += length
        found = tuple(self._damaged_blocks[damaged:])
        return MemoryScrub(blocks, size_bytes, found)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End all fetches; threads that wait for a block get `MasterGone`.

        When this returns no file is made any more. The prefetching threads have ended, except those
        that the store keeps for longer than `CLOSE_S` or `timeout_s`.
        """
        with self._changed:
            self._closed = True
            for flight in self._in_flight.values():
                if not flight.arrived.done():
                    flight.arrived.set_exception(_master_ended())
            self._budget.asked.clear()
            self._budget.quotas.clear()
            jobs = [*self._jobs.values()]
            self._jobs.clear()
            self._observers = ()
            self._changed.notify_all()
            while self._storing:
                self._changed.wait()
        self._prefetching.close(min(CLOSE_S, timeout_s))
        self._slow_scrub.end()
        self._verifying.join()  # it ends after the block that it reads
        if self._payers is not None:
            for job in jobs:
                self._payers.leave(job)

    def remove_member(self, member: Hashable) -> None:
        """Note that the member has ended."""
        with self._changed:
            if member not in self._budget.asked:
                return
            del self._budget.asked[member]
            self._budget.quotas.pop(member, None)
            self._accounting.unmap_all(member)
            if self._orders.pop(member, None) is not None:
                self._expect()
            self._settle_budget()
            job = self._jobs.pop(member, None)
        if self._payers is not None:
            self._payers.leave(job)
        self._release_evicted()

    # The methods below are called with the lock held.

    def _expect(self) -> None:
        """Evict by the orders that members have told; without one by the policy again."""
        orders = [*self._orders.values()]
        uses = orders[0] if len(orders) == 1 else MergedOrders(self._orders)
        self._accounting.expect(FarthestNextUse(uses, self._owns) if orders else None)

    def _check_open(self) -> None:
        if self._closed:
            raise _master_ended()

    def _is_cached(self, block: CacheBlock) -> bool:
        if block.name not in self._accounting:
            return False
        if self._files.has(block.name, block.length):
            return True
        log.warning("block %s is missing from node memory and is fetched again", block.name)
        self._accounting.evict(block.name)
        self._remove([block.name])
        return False

    def _reserve(self, block: CacheBlock, ahead: bool, patient_until: float) -> bool:
        """Reserve room for the block.

        Return False if another attempt may succeed now: the caller checks the state again. Raises
        `CacheFull`.
        """
        length = block.length + self._source.head_bytes(block)
        asked = self._accounting.reserve(block.name, length, ahead=ahead)
        self._remove(asked.evicted)
        if asked.granted:
            return True
        if self._has_more_room(length):
            return False
        if asked.room_expected:
            patience = patient_until - time.monotonic()
            if self._has_evicted or (patience > 0 and self._changed.wait(patience)):
                return False
        self._not_kept += 1
        raise CacheFull(
            f"node memory uses {self._accounting.taken_bytes} of "
            f"{self._accounting.budget_bytes} bytes, and no block can be evicted for {length} "
            "more",
            "give the task more memory with --memory"
            if self._budget.bytes == self._budget.agreed_bytes
            else "the dataset is at its quota: see `dlcmd alloc show`",
        )

    def _settle_budget(self) -> None:
        budget = self._accounting.budget_bytes = self._budget.bytes
        # An LRU order under a quota would evict what the next epoch hits (SiloD, section 2.2).
        policy = self._policy if self._budget.quota_bytes is None else "uniform"
        if policy != self._policy_now:
            self._policy_now = policy
            self._accounting.use_policy(policy_of(policy, self._owns))
        self._files.allow_recycled(budget // RECYCLED_SHARE)
        self._remove(self._accounting.shrink())
        self._changed.notify_all()

    def _has_more_room(self, length: int) -> bool:
        """Return whether others have left room for `length` more bytes in the file system."""

        def room_bytes() -> int:
            stored = self._accounting.taken_bytes - self._accounting.reserved_bytes
            return stored + self._files.free_bytes()

        if not self._budget.look_again(room_bytes):
            return False
        self._settle_budget()
        return self._accounting.taken_bytes + length <= self._accounting.budget_bytes

    def _remove(self, names: Iterable[str]) -> None:
        """Remove the files of blocks that are not accounted any more.

        0.5 ms for 4 MiB that no process maps.
        """
        if self._closed:
            return  # the folder may belong to another master by now
        for name in names:
            self._files.remove(name)
            for observer in self._observers:
                observer.evicted(name)
            self._has_evicted = True

    # The methods below are called without the lock.

    def _verify(self) -> None:
        """Verify the adopted blocks, and then all blocks slowly, until `close`."""
        self._adopted.verify_all(lambda: not self._closed)
        self._slow_scrub.run()

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._in_flight and time.monotonic() - self._asked_at > IDLE_S

    def _verify_again(self, name: str) -> int:
        """Verify a cached block, evict it if it is damaged, and return its bytes."""
        length, is_sound = self._files.length(name), self._files.is_sound(name)
        if is_sound is False:
            with self._changed:
                if not self._closed and name in self._accounting:
                    self._evict_damaged(name)
            self._release_evicted()
        return length

    def _settle_adopted(self, name: str, is_sound: bool) -> None:
        """Let processes map an adopted block, or evict it."""
        with self._changed:
            if self._closed or name not in self._accounting:
                return
            if is_sound:
                self._files.reveal(name)
                return
            self._evict_damaged(name)
        self._release_evicted()

    def _evict_damaged(self, name: str) -> None:
        """Evict a block whose bytes have changed. The lock is held."""
        log.error("block %s has changed in node memory and is fetched again", name)
        self._damaged_blocks.append(name)
        self._accounting.evict(name)
        self._remove([name])
        self._changed.notify_all()

    def _release_evicted(self) -> None:
        """Have the evicted blocks unmapped that this process maps."""
        if self._has_evicted:
            self._has_evicted = False
            for observer in self._observers:
                observer.release_evicted()

    def _load(self, block: CacheBlock, flight: _Flight) -> None:
        """Fetch a block for which there is room.

        Raises `CacheFull` also if the file cannot be written for any other reason: the block's
        reader can do without the file.
        """
        error: BaseException | None = None
        try:
            with reading(flight.turn):
                head, data = self._source.fetch(block, flight.as_owner)
            self._store(block, data, head)
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
                self._accounting.keep(block.name)
                self._remove(self._accounting.shrink())
            else:
                self._accounting.drop(block.name)
                if isinstance(error, FileSystemFull):
                    self._budget.note_full(self._accounting.taken_bytes)
                    self._settle_budget()
                self._not_kept += isinstance(error, CacheFull)
                self._failed_fetches += not isinstance(error, CacheFull)
                if isinstance(error, Corrupt | NotFound):
                    self._damage.note(block.name, error)
            self._changed.notify_all()
            if not flight.arrived.done():  # not closed meanwhile
                if isinstance(error, Exception):
                    flight.arrived.set_exception(error)
                else:
                    flight.arrived.set_result(error is None)
        self._release_evicted()
        if error is not None:
            raise error

    def _store(self, block: CacheBlock, data: memoryview, head: memoryview | None) -> None:
        assert len(data) == block.length
        assert head is None or len(head) == block.chunk.head_bytes
        with self._lock:
            self._check_open()
            self._storing += 1
        try:
            self._files.store(block.name, data, head)
        finally:
            with self._changed:
                self._storing -= 1
                self._changed.notify_all()


def _master_ended() -> MasterGone:
    return MasterGone("the master of this node memory has ended")

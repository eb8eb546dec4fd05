"""The cached blocks of a master: their files and their accounting, within the agreed budget.

One lock guards the accounting and the names in the folder. Files are filled and read without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from dieselfs.cache.node.accounting import CacheAccounting
from dieselfs.cache.node.agreed_budget import AgreedBudget, MemoryQuota
from dieselfs.cache.node.block_eviction import Owns, PolicyName, policy_of
from dieselfs.cache.node.chunk_files import ChunkFiles, FileSystemFull
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import CacheObserver
from dieselfs.errors import CacheFull, MasterGone

log = logging.getLogger(__name__)

RECYCLED_SHARE: Final = 16
"""The divisor of the budget that gives the bytes of recycled buffers.

A sixteenth of the budget may exist beside it, in files of evicted blocks, and new blocks are
written over these files.
"""


class BlockCache:
    """The blocks of one master, from those that it finds in the folder until `close`.

    Thread-safe, apart from the methods that say so.
    """

    def __init__(
        self, files: ChunkFiles, budget_bytes: int, policy: PolicyName, owns: Owns
    ) -> None:
        """`budget_bytes` counts while no member asks for another budget."""
        self.files = files
        self.owns = owns
        self.changed = threading.Condition(threading.Lock())
        """The lock, notified when a block is unmapped, evicted or stored, and by `close`."""
        self.budget = AgreedBudget(budget_bytes, time.monotonic)
        self._policy: PolicyName = policy
        self._policy_now: PolicyName = policy
        self.accounting = CacheAccounting(budget_bytes, policy_of(policy, owns), time.monotonic)
        self.not_kept = 0
        """The number of blocks for which there was no room."""
        self.damaged: list[str] = []
        """The blocks that were found changed in node memory."""
        self.closed = False
        self._storing = 0
        self._observers: tuple[CacheObserver, ...] = ()
        self._has_evicted = False
        """True if observers were told of evictions, and not yet to unmap the blocks."""
        for name, length in files.adopt().items():
            self.accounting.adopt(name, length)
        files.allow_recycled(budget_bytes // RECYCLED_SHARE)
        with self.changed:
            self._remove(self.accounting.shrink())

    def names(self) -> Sequence[str]:
        """Return the names of the cached blocks."""
        with self.changed:
            return self.accounting.names()

    def is_cached(self, block: CacheBlock) -> bool:
        """Return whether the block is cached."""
        with self.changed:
            return block.name in self.accounting

    def mapped(self, name: str, *, by: Hashable = None) -> None:
        """See `MasterPort`. `by` is the member; None is this process."""
        with self.changed:
            if by is None or by in self.budget.asked:
                self.accounting.map(by, name)

    def unmapped(self, name: str, *, by: Hashable = None) -> None:
        """See `MasterPort`. `by` is the member; None is this process."""
        with self.changed:
            self.accounting.unmap(by, name)
            self.changed.notify_all()

    def discard(self, name: str) -> None:
        """Evict the block if it is cached, also one of this node's share."""
        with self.changed:
            if self.accounting.evict(name):
                self._remove([name])
                self.changed.notify_all()
        self.release_evicted()

    def note_verified(self, name: str, is_sound: bool) -> None:
        """Evict a block that is damaged; let processes map one that was adopted and is sound."""
        with self.changed:
            if self.closed or name not in self.accounting:
                return
            if is_sound:
                self.files.reveal(name)
                return
            log.error("block %s has changed in node memory and is fetched again", name)
            self.damaged.append(name)
            self.accounting.evict(name)
            self._remove([name])
            self.changed.notify_all()
        self.release_evicted()

    def set_budget(self, budget_bytes: int, *, by: Hashable = None) -> None:
        """See `MasterPort`.

        Without `by` it sets the budget that counts while no member asks for one.
        """
        with self.changed:
            if by is None:
                self.budget.own_bytes = budget_bytes
            elif by in self.budget.asked:
                self.budget.asked[by] = budget_bytes
            self.settle_budget()
        self.release_evicted()

    def set_quota(
        self, quota_bytes: int | None, window_bytes: int = 0, *, by: Hashable = None
    ) -> None:
        """See `MasterPort`. Without `by` it is what the master's own process knows."""
        with self.changed:
            if by is not None and by not in self.budget.asked:
                return  # the member has ended
            self.budget.quotas[by] = MemoryQuota(quota_bytes, window_bytes)
            self.settle_budget()
        self.release_evicted()

    @property
    def agreed_bytes(self) -> int:
        """The bytes that members ask for, if the file system has room; a quota may allow less."""
        with self.changed:
            return self.budget.agreed_bytes

    @property
    def quota_bytes(self) -> int | None:
        """The quota in force, at least the windows of all plans; None: there is none."""
        with self.changed:
            return self.budget.quota_bytes

    def shares_changed(self) -> None:
        """Note that `owns` gives other answers from now on."""
        with self.changed:
            self.accounting.regroup()

    def listen(self, observer: CacheObserver) -> None:
        """Tell `observer` of all evictions from now on, in order."""
        with self.changed:
            self.check_open()
            self._observers = (*self._observers, observer)

    def ignore(self, observer: CacheObserver) -> None:
        """Tell `observer` of no eviction any more."""
        with self.changed:
            self._observers = tuple(each for each in self._observers if each is not observer)

    def release_evicted(self) -> None:
        """Have the evicted blocks unmapped that this process maps."""
        if self._has_evicted:
            self._has_evicted = False
            for observer in self._observers:
                observer.release_evicted()

    def store(self, name: str, data: memoryview, head: memoryview | None) -> None:
        """Write the file of a block for which there is room; afterwards call `keep` or `drop`."""
        with self.changed:
            self.check_open()
            self._storing += 1
        try:
            self.files.store(name, data, head)
        finally:
            with self.changed:
                self._storing -= 1
                self.changed.notify_all()

    # The methods below are called with the lock held.

    def check_open(self) -> None:
        """Raise `MasterGone` after `close`."""
        if self.closed:
            raise master_ended()

    def holds(self, block: CacheBlock) -> bool:
        """Return whether the block is cached. One whose file is gone is not, from now on."""
        if block.name not in self.accounting:
            return False
        if self.files.has(block.name, block.length):
            return True
        log.warning("block %s is missing from node memory and is fetched again", block.name)
        self.accounting.evict(block.name)
        self._remove([block.name])
        return False

    def reserve(self, name: str, length: int, ahead: bool, patient_until: float) -> bool:
        """Reserve room for a block, and wait until then for members to unmap evicted ones.

        Return False if another attempt may succeed now: the caller checks the state again. Raises
        `CacheFull`.
        """
        asked = self.accounting.reserve(name, length, ahead=ahead)
        self._remove(asked.evicted)
        if asked.granted:
            return True
        if self._has_more_room(length):
            return False
        if asked.room_expected:
            patience = patient_until - time.monotonic()
            if self._has_evicted or (patience > 0 and self.changed.wait(patience)):
                return False
        self.not_kept += 1
        raise CacheFull(
            f"node memory uses {self.accounting.taken_bytes} of "
            f"{self.accounting.budget_bytes} bytes, and no block can be evicted for {length} more",
            "give the task more memory with --memory"
            if self.budget.bytes == self.budget.agreed_bytes
            else "the dataset is at its quota: see `dlcmd alloc show`",
        )

    def keep(self, name: str) -> None:
        """Note that a block is stored for which there was room."""
        self.accounting.keep(name)
        self._remove(self.accounting.shrink())

    def drop(self, name: str, error: BaseException) -> None:
        """Note that a block for which there was room could not be fetched or stored."""
        self.accounting.drop(name)
        if isinstance(error, FileSystemFull):
            self.budget.note_full(self.accounting.taken_bytes)
            self.settle_budget()
        self.not_kept += isinstance(error, CacheFull)

    def settle_budget(self) -> None:
        """Let the budget and the quota count that `budget` gives now."""
        budget = self.accounting.budget_bytes = self.budget.bytes
        # An LRU order under a quota would evict what the next epoch hits (SiloD, section 2.2).
        policy = self._policy if self.budget.quota_bytes is None else "uniform"
        if policy != self._policy_now:
            self._policy_now = policy
            self.accounting.use_policy(policy_of(policy, self.owns))
        self.files.allow_recycled(budget // RECYCLED_SHARE)
        self._remove(self.accounting.shrink())
        self.changed.notify_all()

    def close(self) -> None:
        """Store and evict nothing any more. When this returns no file is being made."""
        self.closed = True
        self.budget.asked.clear()
        self.budget.quotas.clear()
        self._observers = ()
        self.changed.notify_all()
        while self._storing:
            self.changed.wait()

    def _has_more_room(self, length: int) -> bool:
        """Return whether others have left room for `length` more bytes in the file system."""

        def room_bytes() -> int:
            stored = self.accounting.taken_bytes - self.accounting.reserved_bytes
            return stored + self.files.free_bytes()

        if not self.budget.look_again(room_bytes):
            return False
        self.settle_budget()
        return self.accounting.taken_bytes + length <= self.accounting.budget_bytes

    def _remove(self, names: Iterable[str]) -> None:
        """Remove the files of blocks that are not accounted any more.

        0.5 ms for 4 MiB that no process maps.
        """
        if self.closed:
            return  # the folder may belong to another master by now
        for name in names:
            self.files.remove(name)
            for observer in self._observers:
                observer.evicted(name)
            self._has_evicted = True


def master_ended() -> MasterGone:
    """Return the error of whatever is asked of a master after its end."""
    return MasterGone("the master of this node memory has ended")

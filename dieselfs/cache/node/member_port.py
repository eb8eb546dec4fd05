"""The port of a master to one of its members, and the member's notices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chunkstore.stores.read_turn import current_turn
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import MemoryScrub, MemoryStatistics
from dieselfs.cache.wire.local_messages import (
    BadPacket,
    Discard,
    Mapped,
    Message,
    PlanProgress,
    Unmapped,
)
from dieselfs.errors import MasterGone
from metadata.errors import SnapshotClosed

if TYPE_CHECKING:
    from dieselfs.cache.node.master import Master

log = logging.getLogger(__name__)


class MemberPort:
    """The `MasterPort` of one member, in the master's process."""

    def __init__(self, master: Master, job: str | None = None) -> None:
        """Add the member, of a job. `close` drops its maps and its budget."""
        self._master = master
        self.payer = master.add_member(self, job)
        """The payer of what the member asks for first; None: that of the master's own reads."""

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """See `MasterPort`. The payer of this thread's turn goes before the member's."""
        self._master.fetch(block, ahead=ahead, payer=current_turn().payer or self.payer)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """See `MasterPort`. It is paid for as `fetch` is."""
        self._master.prefetch(blocks, current_turn().payer or self.payer)

    def mapped(self, name: str) -> None:
        """See `MasterPort`."""
        self._master.blocks.mapped(name, by=self)

    def unmapped(self, name: str) -> None:
        """See `MasterPort`."""
        self._master.blocks.unmapped(name, by=self)

    def discard(self, name: str) -> None:
        """See `MasterPort`."""
        if not self._master.blocks.owns(name):  # other nodes ask for what this one owns
            self._master.blocks.discard(name)

    def expect(self, names: Sequence[str]) -> None:
        """See `MasterPort`."""
        self._master.expect(names, by=self)

    def progress(self, used: int) -> None:
        """See `MasterPort`."""
        self._master.progress(used, by=self)

    def set_budget(self, budget_bytes: int) -> None:
        """See `MasterPort`."""
        self._master.blocks.set_budget(budget_bytes, by=self)

    def set_quota(self, quota_bytes: int | None, window_bytes: int = 0) -> None:
        """See `MasterPort`."""
        self._master.blocks.set_quota(quota_bytes, window_bytes, by=self)

    def follow(self, plan: Path) -> None:
        """See `MasterPort`."""
        self._master.follow(plan, self.payer)

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`."""
        return self._master.statistics()

    def scrub(self) -> MemoryScrub:
        """See `MasterPort`."""
        return self._master.scrub()

    def close(self) -> None:
        """See `MasterPort`."""
        self._master.remove_member(self)

    def notice(self, notice: Message) -> Sequence[str]:
        """Pass on a notice of the member.

        Return the blocks that it maps and that were evicted before: no event will tell it so.
        Raises `BadPacket` for a message that is no notice.
        """
        match notice:
            case Mapped(names):
                for name in names:
                    self.mapped(name)
                return [name for name in names if not self._master.blocks.files.exists(name)]
            case Unmapped(names):
                for name in names:
                    self.unmapped(name)
            case Discard(name):
                self.discard(name)
            case PlanProgress(used):
                self.progress(used)
            case _:
                raise BadPacket(f"a {type(notice).__name__} is not a notice")
        return ()


def master_failed(error: Exception) -> MasterGone:
    """Log a failure that no reader expects, and return it as an error of the master.

    So the reader may still read its range. A closed snapshot is not logged: the client that
    fetches by it ends.
    """
    if isinstance(error, SnapshotClosed):
        return MasterGone("the master's client ends")
    log.error("a request failed with an unexpected error", exc_info=error)
    return MasterGone(f"the master failed: {error!r}; see its log")

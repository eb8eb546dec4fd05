"""The plans of a task's clients, which the process that leads the task follows.

The process has no snapshot open, so a plan names the file of its snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkstore.stores.read_turn import Payer
from dieselfs.cache.node.master import Master
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import fetch_ahead
from dieselfs.prefetch.plan_file import ReadingPlan, open_plan
from dieselfs.prefetch.plans import AnnouncedPlan
from dieselfs.prefetch.prefetcher import Prefetcher
from dieselfs.prefetch.progress_tracker import ClientProgress
from dieselfs.prefetch.window import PrefetchStatistics
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot


@dataclass(slots=True)
class _MasterMemory:
    """The `PlannedMemory` of a master."""

    master: Master
    payer: Payer | None = None
    """The payer of the plans: that of the member which has told the last one."""

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        fetch_ahead(self, blocks)

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        self.master.fetch(block, ahead=ahead, payer=self.payer)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        self.master.prefetch(blocks, self.payer)

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        self.master.blocks.set_quota(None, window_bytes)
        self.master.expect(names)

    def progress(self, used: int) -> None:
        self.master.progress(used)


class ClientPlans:
    """The prefetcher of a task's clients. Thread-safe."""

    def __init__(self, master: Master) -> None:
        self._memory = _MasterMemory(master)
        self._prefetcher = Prefetcher(
            self._memory,
            lambda: master.blocks.agreed_bytes,
            lambda snapshot: ClientProgress(),
            lambda: master.blocks.quota_bytes,
        )
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()

    def follow(self, plan: Path, payer: Payer | None = None) -> None:
        """Prefetch for the plan's reader, at the cost of `payer`; see `Master.fetch`.

        Raises `PlanTooLarge`, `SnapshotRefused` or `FileNotFoundError`.
        """
        file = open_plan(plan)
        self._memory.payer = payer
        self._prefetcher.follow(AnnouncedPlan(file, self._snapshot_of(file.plan)))

    def statistics(self) -> PrefetchStatistics:
        """Return the counters of the prefetcher."""
        return self._prefetcher.statistics()

    def close(self) -> None:
        """End the prefetcher and close the snapshot."""
        self._prefetcher.close()
        if self._snapshot is not None:
            self._snapshot.close()

    def _snapshot_of(self, plan: ReadingPlan) -> Snapshot:
        with self._lock:
            known = self._snapshot
            if known is None or str(known.id) != plan.snapshot_id:
                found = Snapshot.open(Path(plan.snapshot_path))
                if str(found.id) != plan.snapshot_id:
                    found.close()
                    raise SnapshotRefused(
                        f"{plan.snapshot_path} is not the plan's snapshot {plan.snapshot_id}"
                    )
                # An earlier snapshot may be in use: its map is closed with its last reference.
                self._snapshot = found
                return found
            return known

"""The counters of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dieselfs.cache.task.node_memory_statistics import NodeMemoryStatistics


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counters of one client in one process since its plan was created.

    They include those of its node memory, which other processes share.
    """

    files_on_plan: int = 0
    """Files read at the place that the plan of the last `shuffle` gives them."""
    files_off_plan: int = 0
    memory: NodeMemoryStatistics | None = None
    """None: not opened."""

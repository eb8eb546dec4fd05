"""The budget of a master: what its members ask for, as far as a quota and the file system allow.

A quota is what is allocated to the dataset. Members that know it tell it, with the window that
their plan needs, which they get in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 10.0
"""The shortest time between two checks for more room after the file system was full."""


@dataclass(frozen=True, slots=True)
class MemoryQuota:
    """The quota that a member knows of, and the node memory that its plan needs."""

    quota_bytes: int | None
    """The bytes allocated to node memory; None: it knows of no quota."""
    window_bytes: int = 0
    """The least with which its plan can be prefetched."""


class AgreedBudget:
    """The budget that counts now, and the members with the budget that each asks for.

    One thread at a time may use it.
    """

    def __init__(self, own_bytes: int, clock: Callable[[], float]) -> None:
        """`own_bytes` counts while no member asks for another budget."""
        self.own_bytes = own_bytes
        self.asked: dict[Hashable, int | None] = {}
        self.quotas: dict[Hashable, MemoryQuota] = {}
        """The dataset's quota, as members know it."""
        self._clock = clock
        self._room_bytes: int | None = None
        """The bytes that a full file system had for this task; None if it was never full."""
        self._look_again_at = 0.0

    @property
    def bytes(self) -> int:
        """The budget in force."""
        agreed, quota = self.agreed_bytes, self.quota_bytes
        return agreed if quota is None else min(agreed, quota)

    @property
    def quota_bytes(self) -> int | None:
        """The greatest quota that a member knows, at least all windows; None: there is none."""
        known = [each.quota_bytes for each in self.quotas.values() if each.quota_bytes is not None]
        windows = sum(each.window_bytes for each in self.quotas.values())
        return max(*known, windows) if known else None

    @property
    def agreed_bytes(self) -> int:
        """The greatest budget that a member asks for, limited by the file system."""
        asked = [wanted for wanted in self.asked.values() if wanted is not None]
        budget = max(asked, default=self.own_bytes)
        return budget if self._room_bytes is None else min(budget, self._room_bytes)

    def note_full(self, taken_bytes: int) -> None:
        """Note that the file system has less room than the budget: others use it too."""
        if self._room_bytes is None:
            log.warning(
                "the file system of node memory is full at %d of %d bytes; give the task less "
                "memory with --memory, or enlarge /dev/shm",
                taken_bytes,
                self.bytes,
            )
        self._room_bytes = taken_bytes
        self._look_again_at = self._clock() + LOOK_AGAIN_S

    def look_again(self, room_bytes: Callable[[], int]) -> bool:
        """Return whether a check was due whether others use the file system less than before."""
        if self._room_bytes is None or self._clock() < self._look_again_at:
            return False
        self._look_again_at = self._clock() + LOOK_AGAIN_S
        self._room_bytes = max(self._room_bytes, room_bytes())
        return True

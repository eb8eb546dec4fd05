"""How far the reader of a plan has come, found from what it reads: no call of the user's own tells it.

A file that is among the next some hundred of the plan moves the position behind it, so that readers which leave files out, or are
not quite in order (several threads, a batch sorted by itself), are followed too. The position is published, by 8 bytes stored into the plan's
shared map, every 64 files: whoever fetches ahead thinks in chunks.
"""

from __future__ import annotations

from typing import Final

from dieselfs.plan.plan_file import PlanFile

_AHEAD: Final = 1024
"""Files of the plan that are known by their inodes at a time."""
_BEHIND: Final = 256
_PUBLISHED_EVERY: Final = 64


class ReadingPosition:
    """For one thread at a time. About 0.1 µs a file. Forked children move the same plan on; it never moves back."""

    def __init__(self, plan: PlanFile) -> None:
        self.plan = plan
        self.on_plan = 0
        """Files read that the plan has about here."""
        self.off_plan = 0
        """Other files read."""
        self._order = plan.plan.inodes
        self._next = self._published = plan.position
        self._look_around()

    def passed(self, inode: int) -> None:
        """This file has been read."""
        place = self._places.get(inode)
        if place is None:
            self.off_plan += 1
            return
        self.on_plan += 1
        if place < self._next:
            if not self._is_next(inode):  # a file that the plan has twice, by its later place
                return
            place = self._next
        self._next = place + 1
        if self._next >= self._published + _PUBLISHED_EVERY or self._next == len(self._order):
            self._publish()
        if self._next >= self._renewed_at:
            self._look_around()

    def _is_next(self, inode: int) -> bool:
        return self._next < len(self._order) and self._order[self._next] == inode

    def _publish(self) -> None:
        self._published = self._next
        if self.plan.position < self._next:
            self.plan.position = self._next

    def _look_around(self) -> None:
        first = max(0, self._next - _BEHIND)
        near = self._order[first : self._next + _AHEAD].tolist()
        places = range(first + len(near) - 1, first - 1, -1)
        # From the end, so that of a file that is here twice the first place stays.
        self._places = dict(zip(reversed(near), places, strict=True))
        self._renewed_at = self._next + _AHEAD - _BEHIND

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

    __slots__ = (
        "_at",
        "_first",
        "_near",
        "_order",
        "_places",
        "_published",
        "_stop_at",
        "expected",
        "off_plan",
        "on_plan",
        "plan",
    )

    def __init__(self, plan: PlanFile) -> None:
        self.plan = plan
        self.on_plan = 0
        """Files read that the plan has about here."""
        self.off_plan = 0
        """Other files read."""
        self.expected = -1
        """The file whose turn it is; -1 at the end."""
        self._order = plan.plan.inodes
        self._published = plan.position
        self._first = self._at = self._stop_at = 0
        self._near: list[int] = []
        """The order from place `_first` on; the expected file is its number `_at`."""
        self._places: dict[int, int] | None = None
        """Of the files in `_near`, in the whole order; made when somebody reads out of turn."""
        self._look_around(plan.position)

    def passed(self, inode: int) -> None:
        """This file has been read."""
        if inode != self.expected:
            self._passed_out_of_turn(inode)
            return
        self.on_plan += 1
        at = self._at = self._at + 1
        if at < self._stop_at:
            self.expected = self._near[at]
        else:
            self._move_to(self._first + at)

    def _passed_out_of_turn(self, inode: int) -> None:
        if self._places is None:
            places = range(self._first + len(self._near) - 1, self._first - 1, -1)
            # From the end, so that of a file that is here twice the first place stays.
            self._places = dict(zip(reversed(self._near), places, strict=True))
        place = self._places.get(inode)
        if place is None:
            self.off_plan += 1
            return
        self.on_plan += 1
        if place >= self._first + self._at:
            self._move_to(place + 1)

    def _move_to(self, position: int) -> None:
        if position >= self._published + _PUBLISHED_EVERY or position == len(self._order):
            self._published = position
            if self.plan.position < position:
                self.plan.position = position
        if position - self._first + _BEHIND >= len(self._near):
            self._look_around(position)
        else:
            self._expect(position)

    def _look_around(self, position: int) -> None:
        self._first = max(0, position - _BEHIND)
        self._near = self._order[self._first : position + _AHEAD].tolist()
        self._places = None
        self._expect(position)

    def _expect(self, position: int) -> None:
        at = self._at = position - self._first
        self.expected = self._near[at] if at < len(self._near) else -1
        # The list's end is not met by counting: it is renewed before, but for the plan's own end.
        self._stop_at = min(self._published + _PUBLISHED_EVERY - self._first, len(self._near))

"""The position of the reader of a plan, derived from its reads; the user's code makes no call.

A file among the next some hundred of the plan moves the position behind it. So readers are also
followed that leave files out, or are not quite in order (several threads, a batch sorted by
itself). The position is published every 64 files, of large ones more often, by 8 bytes stored into
the plan's shared map: the prefetcher works in units of chunks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.prefetch.plan_file import PlanFile

_AHEAD: Final = 1024
"""Files of the plan whose inodes are kept at a time."""
_BEHIND: Final = 256
PUBLISHED_FILES: Final = 64
PUBLISHED_BYTES: Final = 2 << 20
"""The position is published after so many files, or after so many bytes if that is less."""


def files_between_positions(lengths: npt.NDArray[np.integer]) -> int:
    """Return after how many files of these lengths a position is published."""
    mean = max(int(lengths.mean()), 1) if len(lengths) else 1
    return min(max(PUBLISHED_BYTES // mean, 1), PUBLISHED_FILES)


class ReadingPosition:
    """The position of one reader, for one thread at a time. Costs about 0.1 µs a file.

    Forked children advance the same plan; it never moves back.
    """

    __slots__ = (
        "_at",
        "_every",
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

    def __init__(self, plan: PlanFile, every: int = PUBLISHED_FILES) -> None:
        """Create it. The position is published after `every` files."""
        self.plan, self._every = plan, every
        self.on_plan = 0
        """Files read near their place in the plan."""
        self.off_plan = 0
        """Other files read."""
        self.expected = -1
        """The next file of the plan; -1 at the end."""
        self._order = plan.plan.inodes
        self._published = plan.position
        self._first = self._at = self._stop_at = 0
        self._near: list[int] = []
        """The part of the order from place `_first` on; the expected file is its item `_at`."""
        self._places: dict[int, int] | None = None
        """Places of the files of `_near` in the order; built at the first read out of turn."""
        self._look_around(plan.position)

    def passed(self, inode: int) -> None:
        """Note that a file has been read."""
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
            # The order is reversed, so that the first place of a file that occurs twice stays.
            self._places = dict(zip(reversed(self._near), places, strict=True))
        place = self._places.get(inode)
        if place is None:
            self.off_plan += 1
            return
        self.on_plan += 1
        if place >= self._first + self._at:
            self._move_to(place + 1)

    def _move_to(self, position: int) -> None:
        if position >= self._published + self._every or position == len(self._order):
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
        # The count never meets the end of the list, which is renewed before, except at the plan's
        # end.
        self._stop_at = min(self._published + self._every - self._first, len(self._near))

"""Which directories to list before a reader comes to them: readahead, for directories.

The first listing of a directory costs the kernel 5 µs a name and the second one 2, since the first makes an inode and an entry of
every name. The process that asks does all of that work, so another process that lists the next directories in time takes it
off the reader's hands (`lister`). A walk comes to the directories of one parent in the order of their numbers, and mostly from
there on to its sibling's: whoever lists one right after the one before it will want the following ones.

The daemon sees a listing only if the kernel does not have it yet. So a reader that is seen has come to the end of what was listed
for it, or has overtaken the lister.
"""

from __future__ import annotations

from typing import Final

from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

MAX_DIRECTORIES: Final = 64
"""Most that are listed ahead of a reader, and then only if it has listed as many before."""
MAX_NAMES: Final = 1 << 15
"""Most names in them: 0.15 s of the lister's time and 35 MB of the kernel's memory, in vain if the reader has gone away."""
BATCH_NAMES: Final = 1024
"""Handed to the lister at a time: 5 ms. What it has not been handed yet can still be given up."""

_LISTED, _HANDED_OUT = 1, 2


class ListingAhead:
    """The plan for one snapshot of a mount."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._state = bytearray(snapshot.directory_count)  # by number
        self._planned = range(0)  # numbers, without those that were listed or handed out meanwhile

    def begun(self, directory: int) -> None:
        """A reader, not the lister, lists a directory that the kernel does not have."""
        number = directory - DIRECTORY_BASE
        overtook = self._state[number] == _HANDED_OUT
        self._state[number] = _LISTED
        run = self._run_before(number)
        if run:
            # A reader that overtook the lister once would do so at each directory, and list it at the same time, each waiting for
            # the other's entries: leave it one of its own.
            first = number + (2 if overtook else 1)
            self._planned = range(first, self._end(first, run))

    def _run_before(self, number: int) -> int:
        """How many before this one, side by side, have been listed. The root is nobody's sibling."""
        run = 0
        while run < MAX_DIRECTORIES and number - run > 1 and self._state[number - run - 1]:
            run += 1
        return run

    def _end(self, first: int, directories: int) -> int:
        last, names = min(first + directories, len(self._state)), 0
        for number in range(first, last):
            names += self._names(number)
            if names > MAX_NAMES:
                return number
        return last

    def take(self) -> list[bytes]:
        """The paths of the directories to be listed next, about `BATCH_NAMES` names at a time; [] if there are none."""
        taken: list[bytes] = []
        names = 0
        for number in self._planned:
            if names >= BATCH_NAMES:
                self._planned = self._planned[self._planned.index(number) :]
                return taken
            if not self._state[number]:
                self._state[number] = _HANDED_OUT
                names += self._names(number)
                taken.append(self._snapshot.path_of(DIRECTORY_BASE + number))
        self._planned = range(0)
        return taken

    def _names(self, number: int) -> int:
        return self._snapshot.child_count(DIRECTORY_BASE + number)

"""The progress of a plan's readers through a mount, from progress probes.

The probes are a few files of the order, watched until a reader closes them. A probe lies somewhere
in each stretch of the order: one file in 64, or one in 2 MiB. The *low* progress is the last probe
that was closed after all those before it: the position of the slowest reader, except for the reads
of several readers between two probes. The *high* progress is the greatest probe that was closed.

Probes are watched shortly before their turn. One that cannot be watched is left out, and so is one
whose files are being filled by a process that opens them, until they are.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.prefetch.close_events import CloseEvents

PROBE_FILES: Final = 64
PROBE_BYTES: Final = 2 << 20
"""Each stretch of `PROBE_FILES` files, or of so many bytes if that is less, has one probe."""
WATCHED_AHEAD: Final = 1024
"""Probes that are watched ahead.

A reader of cached files passes 65,536 files in 0.2 s, ten times as long as the prefetcher waits
between two checks.
"""
_STRAYS: Final = 4
"""The number of closed probes in a row that show the readers' position, however far ahead."""
_GOLDEN: Final = 2654435769
"""2^32 / φ: its multiples fall into all parts of a stretch evenly (Knuth, TAOCP 3, §6.4)."""


class _State(IntEnum):
    NOT_YET = 0
    WATCHED = 1
    PAUSED = 2
    """The probe is watched when its chunk is filled."""
    CLOSED = 3
    LEFT_OUT = 4
    """The probe reports nothing any more."""


def probe_positions(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the positions of the probes in an order of files with these lengths.

    They are increasing, and end with the last file that is not empty: readers may skip empty files.
    A probe is anywhere in its stretch: at even distances all of them could be in the batches of one
    reader out of two, and report nothing of the other.
    """
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return np.empty(0, np.int64)
    weight = np.maximum(lengths[filled].astype(np.int64), PROBE_BYTES // PROBE_FILES)
    stretch = (np.cumsum(weight) - 1) // PROBE_BYTES
    last = np.flatnonzero(np.diff(stretch, append=stretch[-1] + 1))
    files = np.diff(last, prepend=-1)
    before_last = (np.arange(len(last)) * _GOLDEN % (1 << 32)) * files >> 32
    before_last[-1] = 0
    return filled[last - before_last]


class ProgressProbes:
    """The probes of one order after the other. One thread uses it."""

    def __init__(self, events: CloseEvents, path_of: Callable[[int], bytes]) -> None:
        """Create it.

        `events` is the caller's to close; `path_of` returns the path of a file of the snapshot.
        """
        self._events, self._path_of = events, path_of
        self.closed = self.left_out = 0
        """Counters over all orders."""
        self._low = self._high = self._next = self._watched_end = self._strays = 0
        self._lay_out(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint32))

    def begin(
        self,
        order: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.integer],
        chunks: npt.NDArray[np.uint32],
    ) -> None:
        """Start an order and forget the former.

        `lengths` and `chunks` are of the files in this order.
        """
        self._events.clear()
        self._lay_out(order, probe_positions(lengths), chunks)

    def watch(self, leading_position: int) -> None:
        """Watch the probes that come next after the leading position."""
        first = max(self._next, int(np.searchsorted(self.positions, leading_position, "left")))
        end = min(first + WATCHED_AHEAD, len(self.positions))
        while self._watched_end < end:
            is_new = self._state[self._watched_end] == _State.NOT_YET
            if is_new and not self._watch(self._watched_end, leading_position):
                return
            self._watched_end += 1

    def pause(self, chunk: int) -> None:
        """Note that a process that is no reader opens the chunk's files from now on."""
        self._paused.add(chunk)
        for probe in self._probes_of(chunk):
            if self._state[probe] == _State.WATCHED:
                self._events.unwatch(probe)
                self._state[probe] = _State.PAUSED

    def resume(self, chunk: int, leading_position: int) -> None:
        """Note that this process is done.

        A probe that a reader may have passed meanwhile is left out.
        """
        self._paused.discard(chunk)
        for probe in self._probes_of(chunk):
            while self._state[probe] == _State.PAUSED and not self._watch(probe, leading_position):
                if not self._unwatch_last(probe):
                    self._leave_out(probe)

    def progress(self, reach: int) -> tuple[int, int]:
        """Return (low, high).

        `low` files at the order's beginning have been read; `high` is one more than the greatest
        position that was. A probe beyond `reach` counts as closed by another program, and is
        watched again, unless no others are closed any more.
        """
        for probe in self._events.take():
            self.closed += 1
            self._strays = self._strays + 1 if self.positions[probe] >= reach else 0
            if 0 < self._strays < _STRAYS:
                self._state[probe] = _State.NOT_YET
                if not self._watch(probe, 0):
                    self._leave_out(probe)
                continue
            self._state[probe] = _State.CLOSED
            self._high = max(self._high, int(self.positions[probe]) + 1)
        self._move_on()
        return self._low, self._high

    def advance(self, low: int) -> None:
        """Note that the readers are past the first `low` files, though they have left probes out.

        The progress never goes back.
        """
        self._low = max(self._low, low)
        end = int(np.searchsorted(self.positions, self._low, "left"))
        for probe in range(self._next, end):
            if self._state[probe] == _State.WATCHED:
                self._events.unwatch(probe)
            if self._state[probe] != _State.CLOSED:
                self._state[probe] = _State.LEFT_OUT
        self._watched_end = max(self._watched_end, end)
        self._move_on()

    def _lay_out(
        self,
        order: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
        chunks: npt.NDArray[np.uint32],
    ) -> None:
        self.positions = positions
        self._inodes, self._chunks = order[positions], chunks[positions]
        self._files = len(order)
        self._state = bytearray(len(positions))
        self._next = self._watched_end = self._low = self._high = self._strays = 0
        self._paused: set[int] = set()
        self._move_on()

    def _watch(self, probe: int, leading_position: int) -> bool:
        """Watch a probe or leave it out.

        False if it must be tried again, since there are too many watches now.
        """
        if int(self._chunks[probe]) in self._paused:
            self._state[probe] = _State.PAUSED
            return True
        is_passed = self.positions[probe] < leading_position and self._state[probe] == _State.PAUSED
        if not is_passed and self._events.watch(probe, self._path_of(int(self._inodes[probe]))):
            self._state[probe] = _State.WATCHED
            return True
        if not is_passed and self._events.is_full and self._events:
            return False  # it can be watched when one of the others was closed
        self._leave_out(probe)
        return True

    def _unwatch_last(self, after: int) -> bool:
        """Watch the last probe later, since an earlier one needs its place.

        False if there is none after that.
        """
        last = bytes(self._state).rfind(_State.WATCHED, after + 1, self._watched_end)
        if last < 0:
            return False
        self._events.unwatch(last)
        self._state[last] = _State.NOT_YET
        self._watched_end = last
        return True

    def _leave_out(self, probe: int) -> None:
        self._state[probe] = _State.LEFT_OUT
        self.left_out += 1

    def _probes_of(self, chunk: int) -> list[int]:
        found: list[int] = np.flatnonzero(self._chunks == chunk).tolist()
        return found

    def _move_on(self) -> None:
        state = self._state
        while self._next < len(state) and state[self._next] in (_State.CLOSED, _State.LEFT_OUT):
            if state[self._next] == _State.CLOSED:
                self._low = max(self._low, int(self.positions[self._next]) + 1)
            self._next += 1
        if self._next == len(state) and (not state or state[-1] == _State.CLOSED):
            self._low = self._files

"""Which files some hundreds of paths probably are: what a loop of look-ups waits for one after the other, memory, all at once.

A path's first places in the index are looked at together, and the candidate is taken whose name ends in the same 8 bytes. Whoever asks
compares the whole path, and looks up singly what was guessed wrong: names shorter than 8 bytes, paths further from their home, absent ones.
20 numpy operations of some 2 µs, and 0.1 µs a path: from about 30 paths on quicker than single look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from metadata import path_index
from metadata.snapshot_format import TAIL_BYTES, Columns, SnapshotHeader

_TAIL: Final = 8
_PLACES: Final = np.arange(4)
"""Of paths that are there, 19 in 20 are found within four places of their home."""
assert _TAIL <= TAIL_BYTES


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of each path. All are numbers of files and directories, and bounds inside the file, however damaged it is."""

    inode: list[int]
    parent: list[int]
    """Number of the file's directory."""
    name_start: list[int]
    """Where in the snapshot's file the name begins,"""
    name_end: list[int]
    """and ends."""


def guess(header: SnapshotHeader, columns: Columns, paths: Sequence[bytes]) -> Guesses:
    """The snapshot must have files, and `paths` must not be empty."""
    count = len(paths)
    digests = np.fromiter(map(xxhash.xxh3_64_intdigest, paths), np.uint64, count)
    home = path_index.home_slots(digests, path_index.slot_count(header.files))
    entry = columns.file_index.take(home[:, None] + _PLACES, mode="clip").astype(np.int64)
    inode = np.minimum(np.maximum(entry, 1), header.files) - 1
    start = columns.name_at.take(inode).astype(np.int64) + columns.names_start
    end = np.minimum(start + columns.name_bytes.take(inode), len(columns.file))
    text = np.frombuffer(b"\0".join([bytes(_TAIL - 1), *paths]), np.uint8)
    text_end = np.cumsum(np.fromiter(map(len, paths), np.int64, count) + 1) + _TAIL - 1
    same = _words_before(columns.file, end) == _words_before(text, text_end)[:, None]
    chosen = np.arange(count) * len(_PLACES) + same.argmax(1)
    files = inode.ravel()[chosen]
    parent = np.minimum(columns.parent.take(files), header.directories - 1)
    return Guesses(
        files.tolist(), parent.tolist(), start.ravel()[chosen].tolist(), end.ravel()[chosen].tolist()
    )  # fmt: skip


def _words_before(
    text: npt.NDArray[np.uint8], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """The 8 bytes that end at each place."""
    windows: npt.NDArray[np.void] = np.ndarray((len(text) - _TAIL + 1,), f"V{_TAIL}", text, 0, (1,))
    return windows[end - _TAIL].view("<u8")

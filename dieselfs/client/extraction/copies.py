"""The files to copy out of a dataset, and the order in which they are fetched."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dieselfs.dataset.path_filter import PathFilter

if TYPE_CHECKING:
    from dieselfs.dataset.file_stat import FileStat

WINDOW_FILES: Final = 1 << 16
"""Number of files that are sorted by chunk at a time; it bounds memory, at about 40 MB."""
BATCH_BYTES: Final = 8 << 20
"""The most bytes of a batch: a chunk of ordinary size, whole."""
STREAMED_BYTES: Final = 4 << 20
"""The size above which a file is read and written in blocks."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One file or directory, and its path below the local folder ('' for the folder itself)."""

    entry: FileStat
    target: str

    @property
    def parent(self) -> str:
        """The path of its directory below the local folder."""
        return self.target.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name in that directory."""
        return self.target.rpartition("/")[2]

    @property
    def is_link(self) -> bool:
        """True if it is a symbolic link, whose content is its target."""
        return self.entry.kind == "link"


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The part of a dataset to copy, and the folder that it goes to."""

    entry: FileStat
    folder: Path
    name: str
    """The entry's name in the folder; empty if its contents go into the folder itself."""
    filters: PathFilter

    def copies(self, walk: Callable[[str], Iterable[FileStat]]) -> Iterator[Copy]:
        """Yield every file and directory, parents first. `walk` is a client's."""
        yield Copy(self.entry, self.name)
        if self.entry.kind == "directory":
            for found in self._taken(walk(self.entry.path)):
                yield Copy(found, self._target(found.path))

    def _taken(self, entries: Iterable[FileStat]) -> Iterator[FileStat]:
        """Yield the entries that the filters take, and all parents of these."""
        aside: dict[str, FileStat] = {}
        for entry in entries:
            if not self.filters.takes(entry.path):
                if entry.kind == "directory":
                    aside[entry.path] = entry
                continue
            if aside:
                yield from _claimed(aside, entry.path)
            yield entry

    def _target(self, path: str) -> str:
        below = path[len(self.entry.path) + 1 :] if self.entry.path else path
        return f"{self.name}/{below}" if self.name else below


def _claimed(aside: dict[str, FileStat], path: str) -> list[FileStat]:
    """Remove the parents of `path` from `aside`, and return them, topmost first."""
    above = []
    while path := path.rpartition("/")[0]:
        if path in aside:
            above.append(aside.pop(path))
    return above[::-1]


def windows(copies: Iterator[Copy]) -> Iterator[list[Copy]]:
    """Yield windows of files, each window in the order in which its files lie in their chunks."""
    while window := list(itertools.islice(copies, WINDOW_FILES)):
        window.sort(key=lambda copy: (copy.entry.chunk or "", copy.entry.offset))
        yield window


def batches(window: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Yield files of one chunk, sorted by directory, in batches that fit in memory.

    `window` is sorted by chunk. A file that is larger than a block is alone.
    """
    batch: list[Copy] = []
    size = 0
    for copy in window:
        entry = copy.entry
        is_full = size + entry.size > BATCH_BYTES or entry.size > STREAMED_BYTES
        if batch and (is_full or entry.chunk != batch[0].entry.chunk):
            yield sorted(batch, key=_parent)
            batch, size = [], 0
        batch.append(copy)
        size += entry.size
        if entry.size > STREAMED_BYTES:
            size = BATCH_BYTES + 1  # the next file begins another batch, an empty one too
    if batch:
        yield sorted(batch, key=_parent)


def by_parent(batch: Iterable[Copy]) -> Iterator[tuple[str, Iterator[Copy]]]:
    """Yield the files of each directory; `batch` is sorted by directory."""
    return itertools.groupby(batch, _parent)


def depth(copy: Copy) -> int:
    """Return the number of names in the target."""
    return copy.target.count("/") + 1 if copy.target else 0


def _parent(copy: Copy) -> str:
    return copy.parent

"""The directories of a dataset in the course of its commits: their numbers and current records.

A directory's record depends on the order of its events (docs/metadata-layout.md, "What a commit
makes of the index", rule 3). It depends on the files below it only through the commits that added
any. So all directories are kept in memory and updated commit by commit, whole columns at a time,
and the files need not be in memory.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.commit_log import Commit
from metadata.rebuild.chunk_table import NOWHERE
from metadata.records import ENTRY, RECORD_VERSION, is_tombstone

ROOT: Final = 0
_IMPLICIT_MODE: Final = stat.S_IFDIR | 0o755

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DirectoryRecords:
    """Every directory of the history, live or not, and its record if it has one.

    The columns have equal length.
    """

    paths: Sequence[bytes]
    digests: npt.NDArray[np.uint64]
    """Two numbers each: the hash that is the tag of the directory's keys, and orders them."""
    parents: Numbers
    known: npt.NDArray[np.bool_]
    """The mask of the directories that have a record."""
    rows: npt.NDArray[np.void]
    """The records as `metadata.records.ENTRY`."""
    places: npt.NDArray[np.uint64]


class DirectoryTable:
    """The directories while commits are processed; about 300 bytes a directory, and its path.

    Call `add` for each chunk of a commit, then `commit`.
    """

    def __init__(self, dataset_id: bytes) -> None:
        self.paths = [b""]
        """The paths by number, parents before children."""
        self._dataset_id = dataset_id
        self._numbers = {b"": ROOT}
        self._new_parents = [ROOT]
        self._digests = bytearray(xxhash.xxh3_128_digest(dataset_id))
        # These columns are by number. They are longer than `paths`, so that they rarely grow.
        self._parents = np.zeros(0, np.int64)
        self._rows = np.zeros(0, ENTRY)
        self._places = np.zeros(0, np.uint64)
        self._known = np.zeros(0, bool)
        # The state of the present commit.
        self._touched = np.zeros(0, bool)
        self._entries: list[_Entries] = []

    def __len__(self) -> int:
        return len(self.paths)

    def numbers_of(self, paths: Sequence[bytes]) -> Numbers:
        """Return the number of each path; new paths are added, with all directories above them."""
        found = list(map(self._numbers.get, paths))
        if None in found:
            for path in paths:
                if path not in self._numbers:
                    self._take_in(path)
            found = list(map(self._numbers.get, paths))
        return np.array(found, np.int64)

    def add(
        self,
        touched: Numbers,
        paths: Sequence[bytes],
        rows: npt.NDArray[np.void],
        places: npt.NDArray[np.uint64],
        adds: npt.NDArray[np.bool_],
    ) -> None:
        """Note what a chunk of the present commit does to directories.

        It adds files to the directories `touched`, and has entries of directories: their `paths`,
        records, places, and which of them are new and no tombstones.
        """
        self._grow()
        self._touched[touched] = True
        if len(paths):
            self._entries.append(_Entries(self.numbers_of(paths), rows, places, adds))

    def commit(self, commit: Commit) -> None:
        """Update the records to the present commit, all of whose chunks have been added."""
        self._grow()
        put = _Entries.joined(self._entries).greatest()
        below = put.adds & (put.numbers != ROOT)
        self._touched[self._parents[put.numbers[below]]] = True
        touched = self._with_those_above(np.flatnonzero(self._touched))
        implied = np.setdiff1d(touched, put.numbers[put.adds])
        beaten = np.isin(put.numbers, implied)
        self._replace(put.chosen(~beaten))  # this and the next call affect different directories
        self._replace(self._implied(commit, implied))
        self._touched[:] = False
        self._entries = []

    def digests(self) -> npt.NDArray[np.uint64]:
        """Return the digests of all directories so far, as in `DirectoryRecords`."""
        return np.frombuffer(bytes(self._digests), ">u8").reshape(-1, 2).astype(np.uint64)

    def records(self) -> DirectoryRecords:
        """Return the records after the last commit."""
        self._grow()
        count = len(self.paths)
        return DirectoryRecords(
            self.paths,
            self.digests(),
            self._parents[:count],
            self._known[:count],
            self._rows[:count],
            self._places[:count],
        )

    def _take_in(self, path: bytes) -> None:
        missing = []
        while path not in self._numbers:
            missing.append(path)
            path = path.rpartition(b"/")[0]
        parent = self._numbers[path]
        for below in reversed(missing):
            self._new_parents.append(parent)
            parent = self._numbers[below] = len(self.paths)
            self.paths.append(below)
            self._digests += xxhash.xxh3_128_digest(self._dataset_id + below)

    def _grow(self) -> None:
        old, count = len(self.paths) - len(self._new_parents), len(self.paths)
        if count > len(self._parents):
            more = max(count, 2 * old, 1024) - len(self._parents)
            self._parents = np.append(self._parents, np.zeros(more, np.int64))
            self._rows = np.concatenate([self._rows, np.zeros(more, ENTRY)], dtype=ENTRY)
            self._places = np.append(self._places, np.full(more, NOWHERE))
            self._touched = np.append(self._touched, np.zeros(more, bool))
            self._known = np.append(self._known, np.zeros(more, bool))
        self._parents[old:count] = self._new_parents
        self._new_parents = []

    def _with_those_above(self, numbers: Numbers) -> Numbers:
        """Return these directories (each once) and all above them, without the root."""
        found = level = numbers
        while len(level):
            level = np.setdiff1d(self._parents[level], found)
            found = np.concatenate([found, level])
        below_root: Numbers = found[found != ROOT]
        return below_root

    def _implied(self, commit: Commit, numbers: Numbers) -> _Entries:
        """Return new records for directories below which something was added.

        They have the commit's generation. A live directory keeps its attributes; another gets 0755
        and the commit's time.
        """
        rows, places = self._rows[numbers], self._places[numbers]
        absent = ~self._known[numbers] | is_tombstone(rows)
        rows[absent] = np.zeros((), ENTRY)
        places[absent] = NOWHERE
        rows["mode"][absent] = _IMPLICIT_MODE
        rows["mtime_ns"][absent] = commit.time_ns
        rows["record_version"] = RECORD_VERSION
        rows["version"], rows["placed"] = commit.generation << 1, commit.generation
        return _Entries(numbers, rows, places, np.ones(len(numbers), bool))

    def _replace(self, entries: _Entries) -> None:
        """Keep, of present and new records, the one with the greater stamp."""
        numbers, new = entries.numbers, entries.rows
        old = self._rows[numbers]
        newer = (new["version"] > old["version"]) | (
            (new["version"] == old["version"]) & (new["placed"] > old["placed"])
        )
        newer |= ~self._known[numbers]
        chosen = numbers[newer]
        self._rows[chosen] = new[newer]
        self._places[chosen] = entries.places[newer]
        self._known[chosen] = True


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of directories; the columns have equal length."""

    numbers: Numbers
    rows: npt.NDArray[np.void]
    """The entries as `metadata.records.ENTRY`."""
    places: npt.NDArray[np.uint64]
    adds: npt.NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[_Entries]) -> _Entries:
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(part.numbers for part in parts)]),
            np.concatenate([np.zeros(0, ENTRY), *(part.rows for part in parts)], dtype=ENTRY),
            np.concatenate([np.zeros(0, np.uint64), *(part.places for part in parts)]),
            np.concatenate([np.zeros(0, bool), *(part.adds for part in parts)]),
        )

    def chosen(self, which: npt.NDArray[Any]) -> _Entries:
        return _Entries(self.numbers[which], self.rows[which], self.places[which], self.adds[which])

    def greatest(self) -> _Entries:
        """Return one entry a directory: the greatest version, and of those the greatest place."""
        order = np.lexsort((self.places, self.rows["version"].astype(np.uint64), self.numbers))
        numbers = self.numbers[order]
        last = np.append(numbers[1:] != numbers[:-1], np.ones(min(1, len(numbers)), bool))
        return self.chosen(order[last])

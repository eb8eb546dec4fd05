"""The chunks of a dataset in the order in which their entries count, and their current entries.

An entry's *place* is one number for chunk and position: 8 x the bytes of the bitmaps of all earlier
chunks, plus the position. Chunks are numbered by (generation, id), so that of two entries of one
version the greater place wins, and one bit array holds every chunk's bitmap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit
from metadata.application import chunk_record
from metadata.records import ENTRY, ChunkRecord, record_versions

NOWHERE: Final = np.uint64(2**64 - 1)
"""The place of a directory that no entry describes."""


@dataclass(frozen=True, slots=True)
class AddedChunk:
    """A chunk that is not retired, and the commit that added it."""

    ref: ChunkRef
    commit: Commit


def chunks_to_read(commits: Sequence[Commit]) -> list[AddedChunk]:
    """Return the chunks that are added and not retired, by (generation, id)."""
    retired = {chunk_id for commit in commits for chunk_id in commit.retired}
    return [
        AddedChunk(ref, commit)
        for commit in commits
        for ref in sorted(commit.added, key=lambda ref: ref.id)
        if ref.id not in retired
    ]


class ChunkTable:
    """The chunks with their records and current entries.

    It takes about 100 bytes a chunk and one bit an entry.
    """

    def __init__(self, added: Sequence[AddedChunk]) -> None:
        self._added = added
        self._records: list[ChunkRecord] = []
        self._length_sums: list[int] = []
        self._next_place = 0
        self._places = np.zeros(0, np.uint64)
        self._ids = np.frombuffer(b"".join(chunk.ref.id.value for chunk in added), "V16")
        self._generations = np.array([chunk.commit.generation for chunk in added], np.uint64)
        self._current = np.zeros(0, np.uint8)
        self._current_bytes = np.zeros(0, np.uint64)

    def add(self, head: ChunkHead) -> int:
        """Add the head of the next chunk in order; return the place of its first entry."""
        commit = self._added[len(self._records)].commit
        entries = head.entries
        self._records.append(replace(chunk_record(commit, head), deleted=b""))
        self._length_sums.append(int(entries.length.sum()))
        place = self._next_place
        self._next_place += 8 * ((len(entries) + 7) // 8)
        return place

    def all_read(self) -> None:
        """Note that every chunk has been added; now entries can be marked as current."""
        sizes = [8 * ((record.entry_count + 7) // 8) for record in self._records]
        self._places = np.array([0, *accumulate(sizes)], np.uint64)
        self._current = np.zeros(self._next_place // 8, np.uint8)
        self._current_bytes = np.zeros(len(self._records), np.uint64)

    def mark_current(self, places: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]) -> None:
        """Mark these entries as current: records of the index refer to them.

        `NOWHERE` is skipped.
        """
        somewhere = places != NOWHERE
        places, lengths = places[somewhere], lengths[somewhere]
        bits = np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
        np.bitwise_or.at(self._current, (places >> np.uint64(3)).astype(np.int64), bits)
        np.add.at(self._current_bytes, self._numbers(places), lengths)

    def locate(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Return the index entries (`metadata.records.ENTRY`) of files (`FILE_ENTRY`)."""
        entries = np.zeros(len(rows), ENTRY)
        for column in ("version", "offset", "length", "hash", "mtime_ns", "mode"):
            entries[column] = rows[column]
        places = rows["place"]
        numbers = self._numbers(places)
        entries["chunk"] = self._ids[numbers]
        entries["placed"] = self._generations[numbers]
        entries["position"] = places - self._places[numbers]
        entries["record_version"] = record_versions(entries["mode"])
        return entries

    def records(self) -> list[tuple[ChunkId, ChunkRecord]]:
        """Return the finished records."""
        found = []
        bitmaps = np.invert(self._current)
        for number, record in enumerate(self._records):
            start = int(self._places[number]) >> 3
            bitmap = bitmaps[start : start + (record.entry_count + 7) // 8].copy()
            if record.entry_count % 8:
                bitmap[-1] &= (1 << record.entry_count % 8) - 1
            finished = replace(
                record,
                deleted_count=int(np.unpackbits(bitmap).sum()),
                deleted_bytes=self._length_sums[number] - int(self._current_bytes[number]),
                deleted=bitmap.tobytes(),
            )
            found.append((self._added[number].ref.id, finished))
        return found

    def _numbers(self, places: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._places, places, "right") - 1

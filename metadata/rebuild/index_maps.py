"""The maps of all directories in the order of keys, one part of the files after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import print_id
from metadata.rebuild.chunk_table import ChunkTable
from metadata.rebuild.current_versions import GroupedFields, current
from metadata.rebuild.directory_table import ROOT, DirectoryRecords
from metadata.rebuild.map_sink import IndexMapPart, MapKind
from metadata.rebuild.memory_limits import MemoryLimits
from metadata.rebuild.spill import DealtEntries, NamedEntries, joined
from metadata.records import encode_rows, is_file, is_tombstone

_KEY_BYTES: Final = len(b"{" + print_id(bytes(16)).encode() + b"}f")
_SAMPLES: Final = 64
"""The entries sampled for each part that a part is split into.

So the sizes of parts differ by no more than a third.
"""


def spread(digests: npt.NDArray[np.uint64], parts: int) -> npt.NDArray[np.int64]:
    """Return the part of each directory, by the first half of its digest.

    The parts are in the order of keys and of similar sizes.
    """
    return ((digests >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.int64)


class IndexMaps:
    """An iterator over all maps of directories, usable once.

    While it runs, the current entries of chunks are marked and the totals grow.
    """

    def __init__(
        self,
        directories: DirectoryRecords,
        chunks: ChunkTable,
        files: DealtEntries,
        parts: int,
        spill_folder: Path | None,
        limits: MemoryLimits,
    ) -> None:
        self.files = self.bytes = 0
        """The live files so far; `bytes` is the sum of their lengths."""
        self.entries = 0
        """The records of files so far."""
        live = directories.known & ~is_tombstone(directories.rows)
        self.directories = int(live.sum()) - int(live[ROOT])
        chunks.mark_current(
            directories.places[directories.known],
            directories.rows["length"][directories.known].astype(np.uint64),
        )
        self._directories = directories
        self._chunks = chunks
        self._dealt = files
        self._spill_folder = spill_folder
        self._limits = limits
        order = np.lexsort((directories.digests[:, 1], directories.digests[:, 0]))
        self._order = order
        """The map rank -> number of the directory."""
        self._rank = np.empty(len(order), np.int64)
        self._rank[order] = np.arange(len(order))
        raw = directories.digests[order].astype(">u8").tobytes()
        self._tags = [
            b"{" + print_id(raw[at : at + 16]).encode() + b"}" for at in range(0, len(raw), 16)
        ]
        children = np.flatnonzero(directories.known)
        parent_rank = self._rank[directories.parents[children]]
        by_parent = np.argsort(parent_rank, kind="stable")
        self._children, self._parent_rank = children[by_parent], parent_rank[by_parent]
        part_of_rank = spread(directories.digests[order, 0], parts)
        self._bounds = np.searchsorted(part_of_rank, np.arange(parts + 1)).tolist()

    def __iter__(self) -> Iterator[IndexMapPart]:
        for part in range(len(self._bounds) - 1):
            lowest, beyond = self._bounds[part], self._bounds[part + 1]
            if self._dealt.count(part) > 2 * self._limits.part_entries:
                yield from self._split(part, lowest, beyond)
            elif lowest < beyond:
                entries = joined(list(self._dealt.entries_of(part)))
                yield from self._maps(entries, lowest, beyond, b"", None)

    def _split(self, part: int, lowest: int, beyond: int) -> Iterator[IndexMapPart]:
        """Yield the maps of a part that is too large, split by the order of file keys.

        It is too large because one directory is, or because there are many old versions.
        """
        file_keys = [tag + b"f" for tag in self._tags[lowest:beyond]]

        def keys_of(entries: NamedEntries) -> list[bytes]:
            at = (self._rank[entries.rows["directory"]] - lowest).tolist()
            return [
                file_keys[number] + name for number, name in zip(at, entries.names(), strict=True)
            ]

        wanted = -(-self._dealt.count(part) // self._limits.part_entries)
        step = max(1, self._dealt.count(part) // (_SAMPLES * wanted))
        samples = sorted(
            key for entries in self._dealt.entries_of(part) for key in keys_of(entries)[::step]
        )
        cuts = sorted({samples[len(samples) * number // wanted] for number in range(1, wanted)})
        finer = DealtEntries(
            lambda entries: np.array([bisect_right(cuts, key) for key in keys_of(entries)]),
            self._spill_folder,
            self._limits.waiting_bytes,
        )
        try:
            for entries in self._dealt.entries_of(part):
                finer.add(entries)
            finer.all_added()
            for number, (first, end) in enumerate(zip([b"", *cuts], [*cuts, None], strict=True)):
                entries = joined(list(finer.entries_of(number)))
                begin = bisect_left(file_keys, first[:_KEY_BYTES])
                stop = len(file_keys) if end is None else bisect_right(file_keys, end)
                yield from self._maps(entries, lowest + begin, lowest + stop, first, end)
        finally:
            finer.close()

    def _maps(
        self, entries: NamedEntries, lowest: int, beyond: int, first: bytes, end: bytes | None
    ) -> Iterator[IndexMapPart]:
        """Yield the maps of the directories of ranks `lowest` … `beyond` - 1.

        Only files with keys from `first` to `end` are included.
        """
        files = self._file_maps(entries, lowest, beyond)
        for below, part in zip(self._directory_maps(lowest, beyond), files, strict=True):
            begun, ends = first.startswith(part.key), end is not None and end.startswith(part.key)
            if not begun:
                yield below
            if begun or ends:
                part = replace(
                    part,
                    first=first[_KEY_BYTES:] if begun else b"",
                    end=end[_KEY_BYTES:] if end is not None and ends else None,
                )
            yield part

    def _file_maps(self, entries: NamedEntries, lowest: int, beyond: int) -> Iterator[IndexMapPart]:
        map_keys = [tag + b"f" for tag in self._tags[lowest:beyond]]
        maps = self._rank[entries.rows["directory"]] - lowest
        fields = current(map_keys, maps, entries.names(), entries.rows["version"])
        rows = entries.rows[fields.chosen]
        self._chunks.mark_current(rows["place"], rows["length"])
        located = self._chunks.locate(rows)
        live = is_file(located)
        self.files += int(live.sum())
        self.bytes += int(rows["length"][live].sum())
        self.entries += len(rows)
        yield from self._parts(MapKind.FILES, map_keys, fields, located, lowest)

    def _directory_maps(self, lowest: int, beyond: int) -> Iterator[IndexMapPart]:
        begin, stop = np.searchsorted(self._parent_rank, [lowest, beyond]).tolist()
        children = self._children[begin:stop]
        paths = self._directories.paths
        names = [paths[number].rpartition(b"/")[2] for number in children.tolist()]
        map_keys = [tag + b"d" for tag in self._tags[lowest:beyond]]
        maps = self._parent_rank[begin:stop] - lowest
        fields = current(map_keys, maps, names, np.zeros(len(names), np.uint64))
        rows = self._directories.rows[children[fields.chosen]]
        yield from self._parts(MapKind.DIRECTORIES, map_keys, fields, rows, lowest)

    def _parts(
        self,
        kind: MapKind,
        map_keys: Sequence[bytes],
        fields: GroupedFields,
        rows: npt.NDArray[np.void],
        lowest: int,
    ) -> Iterator[IndexMapPart]:
        values = encode_rows(fields.keys, rows)
        extents = fields.extents(len(map_keys))
        numbers = self._order[lowest : lowest + len(map_keys)].tolist()
        for at, key in enumerate(map_keys):
            chosen = slice(extents[at], extents[at + 1])
            yield IndexMapPart(
                kind,
                self._directories.paths[numbers[at]],
                key,
                fields.names[chosen],
                values[chosen],
            )

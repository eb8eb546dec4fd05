"""The records that one commit puts: its newest entry of each name, and the directories above.

The specification is docs/metadata-layout.md, rules 1 to 3 of "What a commit makes of the index".
The cost is about 2 µs of Python an entry.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead
from chunkstore.commit_log import Commit
from chunkstore.paths import ancestors, split
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.records import (
    ENTRY,
    NO_CHUNK,
    RECORD_VERSION,
    decode_entries,
    entry_versions,
    is_tombstone,
    record_versions,
)

_IMPLICIT_MODE = stat.S_IFDIR | 0o755


@dataclass(slots=True)
class MapPart:
    """The fields that a commit puts into one map, of one directory's files or sub-directories."""

    directory: bytes | None
    """The directory; None for the root's own record, which is not counted.

    The root's record lies in its own map.
    """
    key: bytes
    names: list[bytes]
    rows: npt.NDArray[np.void]

    def added(self, generation: int) -> npt.NDArray[np.bool_]:
        """Return which rows are new in this commit: neither tombstones nor carried.

        A carried entry has an older version.
        """
        new: npt.NDArray[np.bool_] = self.rows["version"] == np.uint64(generation << 1)
        return new


@dataclass(slots=True)
class Holes:
    """Entries that something newer hides: chunk -> {position: length}."""

    found: defaultdict[bytes, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Add the entries that these rows refer to; rows without a chunk are skipped."""
        for chunk, position, length in zip(
            rows["chunk"].tolist(), rows["position"].tolist(), rows["length"].tolist(), strict=True
        ):
            if chunk != NO_CHUNK:
                self.found[chunk][position] = length


def commit_records(
    index: KeyValueStore, dataset_id: bytes, commit: Commit, heads: Sequence[ChunkHead]
) -> tuple[list[MapPart], Holes]:
    """Return the entry records that the commit puts, and its own entries that are not current.

    The records are grouped by map and include the directories above the entries. One round of
    reads: directories that exist keep their attributes.
    """
    rows, paths = _rows(commit, heads)
    holes = Holes()
    maps = _by_map(dataset_id, rows, paths, _winners(rows, paths, holes))
    _add_implicit_directories(index, dataset_id, commit, maps, holes)
    return maps, holes


def _rows(commit: Commit, heads: Sequence[ChunkHead]) -> tuple[npt.NDArray[np.void], list[bytes]]:
    """Return all entries of the commit as index rows, by ascending chunk id and position."""
    heads = sorted(heads, key=lambda head: head.chunk_id)
    rows = np.zeros(sum(len(head.entries) for head in heads), ENTRY)
    paths: list[bytes] = []
    for head in heads:
        entries = head.entries
        part = rows[len(paths) : len(paths) + len(entries)]
        part["chunk"] = np.frombuffer(head.chunk_id.value, "V16")
        part["position"] = np.arange(len(entries))
        for column in ("offset", "length", "hash", "mtime_ns", "mode"):
            part[column] = getattr(entries, column)
        part["version"] = entry_versions(entries, commit.generation)
        paths.extend(entries.paths)
    rows["placed"] = commit.generation
    rows["record_version"] = record_versions(rows["mode"])
    return rows, paths


def _winners(
    rows: npt.NDArray[np.void], paths: Sequence[bytes], holes: Holes
) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Return path -> row of the current entry, once for files and once for directories.

    Entries that others of the same commit replace are added to `holes`.
    """
    is_directory = (rows["mode"] & 0o170000) == stat.S_IFDIR
    winners: list[dict[bytes, int]] = []
    for chosen in (np.flatnonzero(~is_directory), np.flatnonzero(is_directory)):
        numbers = chosen.tolist()
        named = paths if len(numbers) == len(paths) else [paths[number] for number in numbers]
        best = dict(zip(named, numbers, strict=True))
        if len(best) < len(numbers):
            best = _greatest(rows["version"], paths, numbers)
            current = set(best.values())
            holes.add(rows[[number for number in numbers if number not in current]])
        winners.append(best)
    return winners[0], winners[1]


def _greatest(
    version: npt.NDArray[np.uint64], paths: Sequence[bytes], numbers: Iterable[int]
) -> dict[bytes, int]:
    best: dict[bytes, int] = {}
    for number in numbers:
        other = best.get(paths[number])
        if other is None or version[number] >= version[other]:
            best[paths[number]] = number
    return best


def _by_map(
    dataset_id: bytes,
    rows: npt.NDArray[np.void],
    paths: Sequence[bytes],
    winners: tuple[dict[bytes, int], dict[bytes, int]],
) -> list[MapPart]:
    parts: list[MapPart] = []
    for best, key_of in zip(winners, (keys.files_of, keys.directories_of), strict=True):
        grouped: defaultdict[bytes, tuple[list[bytes], list[int]]] = defaultdict(lambda: ([], []))
        if (root := best.pop(b"", None)) is not None:
            parts.append(MapPart(None, key_of(dataset_id, b""), [keys.ROOT_FIELD], rows[[root]]))
        for path, number in best.items():
            directory, _, name = path.rpartition(b"/")
            names, numbers = grouped[directory]
            names.append(name)
            numbers.append(number)
        for directory, (names, numbers) in grouped.items():
            parts.append(MapPart(directory, key_of(dataset_id, directory), names, rows[numbers]))
    return parts


def _add_implicit_directories(
    index: KeyValueStore, dataset_id: bytes, commit: Commit, maps: list[MapPart], holes: Holes
) -> None:
    """Give this generation to the directories above everything added.

    They keep the attributes that they have; a new one gets 0755 and the commit's time.
    """
    by_key = {part.key: part for part in maps if part.directory is not None}
    wanted: defaultdict[bytes, list[bytes]] = defaultdict(list)
    put: dict[bytes, set[bytes]] = {}
    for path in _directories_above(maps, commit.generation):
        parent, name = split(path)
        if parent not in put:
            part = by_key.get(keys.directories_of(dataset_id, parent))
            put[parent] = _names_added(part, commit.generation)
        if name not in put[parent]:
            wanted[parent].append(name)
    lookups = [
        MapFields(keys.directories_of(dataset_id, parent), names)
        for parent, names in wanted.items()
    ]
    for parent, lookup, values in zip(wanted, lookups, index.get_many(lookups), strict=True):
        rows = _implicit_rows(commit, lookup, values)
        part = by_key.get(lookup.key)
        if part is None:
            maps.append(MapPart(parent, lookup.key, list(lookup.fields), rows))
            continue
        implied = set(lookup.fields)
        beaten = [number for number, name in enumerate(part.names) if name in implied]
        holes.add(part.rows[beaten])
        kept = [number for number, name in enumerate(part.names) if name not in implied]
        part.names = [part.names[number] for number in kept] + list(lookup.fields)
        part.rows = np.concatenate(
            [part.rows[kept], rows], dtype=ENTRY
        )  # without `dtype`, NumPy would make it native-endian


def _names_added(part: MapPart | None, generation: int) -> set[bytes]:
    """Return the names that a commit itself adds to a map."""
    if part is None:
        return set()
    added = part.added(generation).tolist()
    return {name for name, new in zip(part.names, added, strict=True) if new}


def _directories_above(maps: Iterable[MapPart], generation: int) -> set[bytes]:
    above: set[bytes] = set()
    for part in maps:
        if part.directory and part.directory not in above and part.added(generation).any():
            above.add(part.directory)
            above.update(ancestors(part.directory))
    return above


def _implicit_rows(
    commit: Commit, lookup: MapFields, values: Sequence[bytes | None]
) -> npt.NDArray[np.void]:
    rows = np.zeros(len(values), ENTRY)
    rows["mode"], rows["mtime_ns"], rows["record_version"] = (
        _IMPLICIT_MODE,
        commit.time_ns,
        RECORD_VERSION,
    )
    for number, value in enumerate(values):
        if value is not None:
            present = decode_entries(lookup.key, [lookup.fields[number]], [value])
            if not is_tombstone(present)[0]:
                rows[number] = present[0]
    rows["version"], rows["placed"] = commit.generation << 1, commit.generation
    return rows

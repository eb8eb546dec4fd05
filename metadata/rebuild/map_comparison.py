"""The comparison of an index with what it should hold, map by map.

It also finds the maps that should not exist.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from chunkstore.chunk_id import print_id
from metadata import keys
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.rebuild.index_difference import Fault, IndexDifference
from metadata.rebuild.map_sink import IndexMapPart, MapKind
from metadata.records import ChunkRecord, DatasetState, decode_entries


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field of a map whose value is not the expected one."""

    part: IndexMapPart
    field: bytes
    present: bytes | None
    expected: bytes | None

    @property
    def path(self) -> bytes:
        """The path as in `IndexDifference`."""
        match self.part.kind:
            case MapKind.CHUNKS:
                return print_id(self.field).encode() if len(self.field) == 16 else self.field
            case MapKind.STATE:
                return self.field
            case _:
                return child_path(self.part.directory, self.field)

    def difference(self) -> IndexDifference:
        """Return the mismatch as a difference, with its kind of fault."""
        if self.present is None:
            fault = Fault.MISSING
        elif not _is_sound(self.part.kind, self.part.key, self.field, self.present):
            fault = Fault.DAMAGED
        elif self.expected is None:
            fault = Fault.EXTRA
        else:
            fault = Fault.DIFFERENT
        return IndexDifference(fault, self.part.kind, self.path)


def child_path(directory: bytes, name: bytes) -> bytes:
    """Return the path of a name in a directory; an empty name means the directory itself."""
    return directory + b"/" + name if directory and name else directory + name


def compare_map(index: KeyValueStore, part: IndexMapPart) -> list[Mismatch]:
    """Return where the map differs from `part`; the map is read by one scan."""
    missing = dict(zip(part.fields, part.values, strict=True))
    expected = dict(missing) if missing else missing
    found: dict[bytes, Mismatch] = {}
    for batch in index.scan(part.key):
        for field, value in batch:
            wanted = expected.get(field)
            if value == wanted:
                missing.pop(field, None)
            elif wanted is not None or part.covers(field):
                missing.pop(field, None)
                found[field] = Mismatch(part, field, value, wanted)
    return [
        *found.values(),
        *(Mismatch(part, field, None, value) for field, value in missing.items()),
    ]


def compare_fields(index: KeyValueStore, part: IndexMapPart) -> list[Mismatch]:
    """Return where the fields of `part` differ; other fields of the map are ignored."""
    [present] = index.get_many([MapFields(part.key, part.fields)])
    return [
        Mismatch(part, field, value, wanted)
        for field, value, wanted in zip(part.fields, present, part.values, strict=True)
        if value != wanted
    ]


def maps_below(
    index: KeyValueStore, dataset_id: bytes, directory: bytes, known: Collection[bytes]
) -> Iterator[IndexMapPart]:
    """Yield empty parts for the maps of `directory` and of all that the index has below it.

    An empty part says that nothing should be there. Parents come first. Directories whose map of
    sub-directories is `known` are skipped.
    """
    pending, visited = [directory], set()
    while pending:
        path = pending.pop()
        below = keys.directories_of(dataset_id, path)
        if below in known or below in visited:
            continue
        visited.add(below)
        pending += [
            child_path(path, name) for batch in index.scan(below) for name, _ in batch if name
        ]
        yield IndexMapPart(MapKind.DIRECTORIES, path, below, (), ())
        yield IndexMapPart(MapKind.FILES, path, keys.files_of(dataset_id, path), (), ())


def _is_sound(kind: MapKind, key: bytes, field: bytes, value: bytes) -> bool:
    try:
        match kind:
            case MapKind.CHUNKS:
                ChunkRecord.decode(key, field, value)
            case MapKind.STATE:
                DatasetState.decode(key, field, value)
            case _:
                decode_entries(key, [field], [value])
    except (RecordCorrupt, struct.error):
        return False
    return True

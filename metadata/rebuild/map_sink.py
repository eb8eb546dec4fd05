"""Where a rebuilt index goes: the port between computing the maps and an empty, a present or a doubted index."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class MapKind(enum.Enum):
    """What the fields of a map name."""

    FILES = "file"
    DIRECTORIES = "directory"
    CHUNKS = "chunk"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class IndexMapPart:
    """All that a map should hold, or what it should hold from one field to another."""

    kind: MapKind
    directory: bytes
    """The path whose children the fields are; `b""` for the root, chunks and state."""
    key: bytes
    fields: Sequence[bytes]
    """In any order. None at all: nothing should be there, which a present index may not know."""
    values: Sequence[bytes]
    """`values[i]` belongs to `fields[i]`."""
    first: bytes = b""
    """The part says what the map holds from this field on …"""
    end: bytes | None = None
    """… up to, not including, this one. None: to its end."""

    def covers(self, field: bytes) -> bool:
        return self.first <= field and (self.end is None or field < self.end)


class MapSink(Protocol):
    """Takes a rebuilt index. Called by one thread at a time: `begin`, then `put` any number of times, then `finish`."""

    def begin(self, dataset_id: bytes, generation: int) -> None:
        """The index of this dataset at this generation is to come."""
        ...

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        """Take the maps of directories, both maps of every directory that the history knows, in the order of keys; then the map
        of chunks. Every field of a map is covered by exactly one part. About 30,000 fields a call."""
        ...

    def finish(self, state: IndexMapPart) -> None:
        """Take `totals` and `applied`, the last of all. Other fields of the state map belong to others and are let alone."""
        ...

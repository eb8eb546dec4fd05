"""The port between the computation of the maps and an index: empty, present or suspect."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class MapKind(enum.Enum):
    """The kind of names that the fields of a map are."""

    FILES = "file"
    DIRECTORIES = "directory"
    CHUNKS = "chunk"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class IndexMapPart:
    """The expected content of a map, or of a range of its fields."""

    kind: MapKind
    directory: bytes
    """The path whose children the fields are; `b""` for the root, chunks and state."""
    key: bytes
    fields: Sequence[bytes]
    """The fields in any order.

    Without fields nothing should be there, and a present index may not have the map at all.
    """
    values: Sequence[bytes]
    """The values; `values[i]` belongs to `fields[i]`."""
    first: bytes = b""
    """The first field of the range that the part covers."""
    end: bytes | None = None
    """The end of that range, exclusive; None means the end of the map."""

    def covers(self, field: bytes) -> bool:
        """Return whether the part covers a field."""
        return self.first <= field and (self.end is None or field < self.end)


class MapSink(Protocol):
    """A receiver of a rebuilt index.

    One thread at a time calls `begin`, then `put` any number of times, then `finish`.
    """

    def begin(self, dataset_id: bytes, generation: int) -> None:
        """Prepare for the index of this dataset at this generation."""
        ...

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        """Take maps, about 30,000 fields a call.

        First come the maps of directories, both maps of every directory in the history, in the
        order of keys; then the map of chunks. Exactly one part covers each field of a map.
        """
        ...

    def finish(self, state: IndexMapPart) -> None:
        """Take `totals` and `applied`, at the very end.

        Other fields of the state map belong to others and stay untouched.
        """
        ...

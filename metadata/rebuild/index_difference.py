"""The difference between an index and what it should be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from metadata.rebuild.map_sink import MapKind


class Fault(enum.Enum):
    """The kind of error in one record."""

    MISSING = "missing"
    EXTRA = "extra"
    """The store has nothing that calls for the record."""
    DIFFERENT = "different"
    """The record is sound, but contradicts the store."""
    DAMAGED = "damaged"
    """The record's checksum, length or version is wrong."""


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """One record that contradicts the commits and chunk heads."""

    fault: Fault
    kind: MapKind
    path: bytes
    """The name of what the record describes.

    It is the path of a file or a directory (`b""`: the root's own record), a chunk's printed id, or
    the field of a state.
    """

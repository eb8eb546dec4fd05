"""How an index differs from what it should be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from metadata.rebuild.map_sink import MapKind


class Fault(enum.Enum):
    """What is wrong with one record."""

    MISSING = "missing"
    EXTRA = "extra"
    """Nothing in the store says so."""
    DIFFERENT = "different"
    """Sound, but not what the store says."""
    DAMAGED = "damaged"
    """Its checksum, length or version is wrong."""


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """One record that is not what commits and chunk heads say."""

    fault: Fault
    kind: MapKind
    path: bytes
    """Of a file or a directory (`b""`: the root's own record); of a chunk its printed id; of a state its field."""

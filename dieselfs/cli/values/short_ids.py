"""Ids of snapshots, as short as people need them: 12-8d3f0112 of 12-8d3f0112 and 24 digits more."""

from __future__ import annotations

from typing import Final

_HASH_DIGITS: Final = 32
_SHOWN_DIGITS: Final = 8
"""Six digits of the hash are enough to name a snapshot."""


def short_id(name: str) -> str:
    """Return a snapshot's id with the first digits of its hash; any other name as it is."""
    generation, dash, digits = name.partition("-")
    is_id = generation.isdecimal() and len(digits) == _HASH_DIGITS
    return f"{generation}{dash}{digits[:_SHOWN_DIGITS]}" if is_id else name

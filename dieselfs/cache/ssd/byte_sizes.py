"""Sizes as people write and read them: 4096, 4KiB, 1.5 GiB.

Units are binary; `K`, `KB` and `KiB` mean the same.
"""

from __future__ import annotations

import re
from typing import Final

from dieselfs.errors import UsageError

_UNITS: Final = "KMGTPE"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtpe])(?:i?b)?|b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that `text` means; raise `UsageError` if it is not a size."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a size", "write for instance 4096, 64MiB or 2G")
    number, unit = match.groups()
    scale = 1 << 10 * (1 + _UNITS.index(unit.upper())) if unit else 1
    return int(float(number) * scale) if "." in number else int(number) * scale


def parse_rate(text: str) -> int:
    """Return the bytes a second of `100MB/s`; raise `UsageError` if it is no rate."""
    try:
        return parse_size(text.strip().removesuffix("/s"))
    except UsageError:
        raise UsageError(f"{text!r} is not a rate", "write for instance 100MB/s") from None


def human_size(size_bytes: float) -> str:
    """Return four or five characters and a unit: 999 B, 1.0 KiB, 110 KiB, 1.3 TiB."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    for unit in _UNITS:
        size_bytes /= 1024
        if size_bytes < 1023.5 or unit == _UNITS[-1]:
            break
    return f"{size_bytes:.1f} {unit}iB" if size_bytes < 99.95 else f"{size_bytes:.0f} {unit}iB"

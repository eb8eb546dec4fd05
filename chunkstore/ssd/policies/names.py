"""The names of the cache policies, for settings that must not load the policies themselves."""

from __future__ import annotations

from typing import Final

NEXT_USE: Final = "next-use"
NAMES: Final = ("all", "reject-first", "dynamic", "historic", "future", "hybrid", NEXT_USE)

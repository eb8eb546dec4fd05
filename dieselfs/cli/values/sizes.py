"""Sizes as people write and read them, for the command line."""

from __future__ import annotations

from dieselfs.cache.ssd.byte_sizes import human_size as human_size
from dieselfs.cache.ssd.byte_sizes import parse_size as parse_size

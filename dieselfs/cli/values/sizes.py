"""Sizes as people write and read them, for the command line."""

from __future__ import annotations

from functools import partial

from dieselfs.cache.ssd.byte_sizes import human_size as human_size
from dieselfs.cache.ssd.byte_sizes import parse_rate as parse_rate
from dieselfs.cache.ssd.byte_sizes import parse_size as parse_size
from dieselfs.cli.values.parsed import Parsed

Size = partial(Parsed, "size", parse_size)
"""Returns a click type: a size in bytes, written as 64MiB."""

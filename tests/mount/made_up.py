"""Two versions of a dataset whose bytes follow from path and version, so that any read can be
checked without a copy."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mount.versions import Files

NOISE = random.Random(0).randbytes(4 << 20)
VERSIONS = (0, 1)
DIRECTORIES = 20
ONE_IN_ONLY = 20
"""Every so many files one is in version 0 only, and another in version 1 only."""


def content(path: str, version: int) -> bytes:
    start, size = _place(path, version)
    return NOISE[start : start + size]


@cache
def _place(path: str, version: int) -> tuple[int, int]:
    """Where in the noise, and how much. Most files are small, some are empty, a few are above what
    is stored ahead."""
    dice = random.Random(f"{path} {version}")
    kind = dice.random()
    if kind < 0.02:
        size = 0
    elif kind < 0.03:
        size = dice.randrange(100_000, 700_000)
    else:
        size = dice.randrange(1, 9000)
    return dice.randrange(len(NOISE) - size), size


def versions_of(path: str) -> tuple[int, ...]:
    """Those that the path is in."""
    number = int(path.rpartition("/")[2])
    return {0: (0,), 1: (1,)}.get(number % ONE_IN_ONLY, VERSIONS)


def all_paths(files: int) -> list[str]:
    """In the order in which they are packed: neighbours mostly share a chunk."""
    per_directory = -(-files // DIRECTORIES)
    return [f"d{n // per_directory}/{n}" for n in range(files)]


def files_of(version: int, paths: Iterable[str]) -> Files:
    return {path: content(path, version) for path in paths if version in versions_of(path)}


def names_in(directory: str, version: int, paths: Iterable[str]) -> set[str]:
    return {
        path.partition("/")[2]
        for path in paths
        if path.startswith(f"{directory}/") and version in versions_of(path)
    }

"""The arenas of a process, as its map shows them."""

from itertools import pairwise
from pathlib import Path

ARENA = 64 << 20
"""The address space that glibc reserves for an arena of a thread, and its alignment."""


def arenas(process: int) -> int:
    """The arenas of threads: what is in use of each is writable, and the rest is reserved."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    maps = [(*_bounds(line), line.split()[1]) for line in lines if len(line.split()) == 5]
    return sum(
        used == "rw-p"
        and rest == "---p"
        and start % ARENA == 0
        and end == next_
        and last >= start + ARENA
        for (start, end, used), (next_, last, rest) in pairwise(maps)
    )


def _bounds(line: str) -> tuple[int, int]:
    start, _, end = line.split()[0].partition("-")
    return int(start, 16), int(end, 16)

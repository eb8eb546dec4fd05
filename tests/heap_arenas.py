"""The arenas of a process, as its map shows them."""

from pathlib import Path

ARENA = 64 << 20
"""The address space that glibc reserves for an arena, and its alignment."""


def arenas(process: int) -> int:
    """The arenas of threads: writable maps at multiples of 64 MiB, without a file."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    ranges = [line.split() for line in maps]
    return sum(
        len(fields) == 5 and fields[1] == "rw-p" and int(fields[0].split("-")[0], 16) % ARENA == 0
        for fields in ranges
    )

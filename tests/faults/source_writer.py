"""Rewrites files in place, one after the other and again: `python source_writer.py BEATS FILE…`, a
program of its own.

Each file has one version as a whole: its bytes are all the same. It keeps its size. A byte goes to
BEATS after each round.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import eventually

_PART_BYTES = 64 << 10


def rewrite(path: str, version: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        for _ in range(os.fstat(file.fileno()).st_size // _PART_BYTES):
            file.write(bytes([version]) * _PART_BYTES)


def main() -> None:
    beats, *paths = sys.argv[1:]
    log = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    version = 0
    while True:
        version = version % 255 + 1
        for path in paths:
            rewrite(path, version)
        os.write(log, b".")


@contextmanager
def rewritten(paths: Sequence[Path], folder: Path) -> Iterator[None]:
    """Files that a process rewrites, which has done so once already; killed at the end."""
    beats = folder / "rounds"
    command = [sys.executable, "-m", "tests.faults.source_writer", str(beats), *map(str, paths)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        eventually(lambda: beats.exists() and beats.stat().st_size > 0, "a round")
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()

"""Walks a mount of `content` files, reads all of them and each that should be there by its name:
`python walking.py MOUNT FILES`, a program of its own that starts in milliseconds.

Prints a JSON object with what it found; see `Walked`.
"""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Walked:
    wrong: list[str]
    """Names that should not be there, or are missing, or have other bytes."""
    right: int
    """Reads that gave the right bytes."""
    refused: int
    """Calls that ended with EIO."""


def name_of(number: int) -> str:
    return f"c{number // 20}/{'sub/' if number % 3 == 0 else ''}f{number:04}"


def content_of(number: int) -> bytes:
    return random.Random(number).randbytes(2_000 + number)


def walked(mount: Path, files: int, timeout_s: float) -> Walked:
    """What the program found. Raises `subprocess.TimeoutExpired` if it does not end."""
    command = [sys.executable, "-S", "-E", __file__, str(mount), str(files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=True)
    return Walked(**json.loads(done.stdout))


def main() -> int:
    mount, count = sys.argv[1], int(sys.argv[2])
    expected = {name_of(number): number for number in range(count)}
    wrong: set[str] = set()
    right = refused = 0

    def refuse(error: OSError) -> None:
        nonlocal refused
        if error.errno == errno.EIO:
            refused += 1
        else:
            wrong.add(f"{error.filename}: {error.strerror}")

    def read(name: str) -> None:
        nonlocal right
        path = os.path.join(mount, name)
        try:
            kind = os.lstat(path).st_mode
            if not stat.S_ISREG(kind):
                wrong.add(f"{name}: mode {kind:o}")
                return
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            refuse(error)
            return
        if name in expected and data == content_of(expected[name]):
            right += 1
        else:
            wrong.add(name)

    for folder, below, names in os.walk(mount, onerror=refuse):
        below[:] = [name for name in below if name != ".dieselfs"]
        for name in sorted({*names} - {".dieselfs"}):
            read(os.path.relpath(os.path.join(folder, name), mount))
    for name in expected:
        read(name)
    print(json.dumps({"wrong": sorted(map(ascii, wrong)), "right": right, "refused": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

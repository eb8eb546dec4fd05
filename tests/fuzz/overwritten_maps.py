"""Files that are overwritten, truncated and restored at random under their readers' maps.

A program of its own writes, so that bytes change between any two instructions of a look-up. Answers
and refusals are counted and not compared; nothing may end the reader. `make sanitize` runs it
with the extensions built for ASan and UBSan: they find a number that was checked and read again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from tests.fuzz.path_lookups import KNOWN, MANY
from tests.metadata.snapshot_trees import build

DAMAGES_FOR_ONE_CUT = 300


@dataclass
class Rounds:
    right: int = 0
    """Rounds of look-ups in a snapshot that was sound after them."""
    refused: int = 0
    """Rounds that ended in a refusal: overwritten, or truncated."""


def overwrite(path: Path, sound: bytes, seed: int) -> None:
    """Damage a file and restore it, without an end."""
    draw = random.Random(seed)
    with open(path, "r+b", buffering=0) as file:
        while True:
            if not draw.randrange(DAMAGES_FOR_ONE_CUT):
                os.truncate(path, draw.randrange(len(sound)))
            else:
                at = draw.randrange(len(sound))
                os.pwrite(file.fileno(), draw.randbytes(draw.choice([1, 4, 8, 200])), at)
            if not draw.randrange(4):
                os.pwrite(file.fileno(), sound, 0)
                os.truncate(path, len(sound))


@contextmanager
def overwriting(path: Path, sound: bytes, seed: int) -> Iterator[None]:
    """Overwrite a file in a child process meanwhile."""
    child = os.fork()
    if not child:
        try:
            overwrite(path, sound, seed)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == -signal.SIGKILL, "the writer failed"


def look_up(snapshot: Snapshot, paths: list[bytes]) -> object:
    """Return what the look-ups say of these paths, and the paths of all files."""
    found = snapshot.paths.files(paths)
    alone = [snapshot.paths.file(path) for path in paths]
    text = snapshot.paths.text(np.arange(snapshot.file_count, dtype=np.int64))
    return found, alone, text


def read_overwritten(folder: Path, seconds: float, seed: int) -> Rounds:
    """Look up paths in a snapshot that is overwritten; raise `AssertionError` if one is wrong."""
    path = build(MANY, folder)
    sound, rounds = path.read_bytes(), Rounds()
    with Snapshot.open(path) as snapshot:
        right = look_up(snapshot, KNOWN)
    path.chmod(0o600)
    with overwriting(path, sound, seed):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                with Snapshot.open(path) as snapshot:
                    _read_until_refused(snapshot, right, rounds, end)
            except SnapshotRefused:
                rounds.refused += 1
    return rounds


def _read_until_refused(snapshot: Snapshot, right: object, rounds: Rounds, end: float) -> None:
    snapshot.check_hash()
    for _ in range(50):
        if time.monotonic() > end:
            return
        found = look_up(snapshot, KNOWN)
        if snapshot.is_unchanged():
            # Nothing is said of a change in the same tick of the clock.
            rounds.right += found == right
    # Maps that are no longer checked are read all the same: nothing may end the process.
    for _ in range(50):
        try:
            look_up(snapshot, KNOWN)
        except SnapshotRefused:
            rounds.refused += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = read_overwritten(Path(folder), arguments.seconds, arguments.seed)
    print(rounds)
    assert rounds.refused, "nothing was overwritten"


if __name__ == "__main__":
    main()

"""Processes that read a mount beside each other. They import little, since tests start dozens."""

import json
import multiprocessing
import os
import random
from collections.abc import Sequence
from pathlib import Path


def read_at_random(
    mount: Path,
    source: Path,
    sizes: Sequence[int],
    seed: int,
    failures: "multiprocessing.Queue[str]",
) -> None:
    """Compare parts of the files `sizes/SIZE` of a mount with those of the tree that was packed."""
    dice = random.Random(seed)
    for _ in range(150):
        size = dice.choice(sizes)
        start = dice.randrange(size + 1)
        parts = []
        for top in (mount, source):
            with open(top / "sizes" / str(size), "rb") as reading:
                reading.seek(start)
                parts.append(reading.read(70_000))
        if parts[0] != parts[1] or len(parts[0]) != min(70_000, size - start):
            failures.put(f"reader {seed}: {size} from {start}")


def poll_control_files(mount: Path, rounds: int) -> None:
    for _ in range(rounds):
        with open(mount / ".dieselfs" / "stats.json", "rb") as reading:
            size = os.fstat(reading.fileno()).st_size
            content = reading.read()
        assert len(content) == size
        assert json.loads(content)["requests"]["lookup"] > 0
        assert os.stat(mount / ".dieselfs" / "dataset.json").st_size > 0
        listing = (mount / ".dieselfs" / "shuffle" / "seed=5").read_bytes()
        assert listing.count(b"\n") == 101
        os.listdir(mount / ".dieselfs")

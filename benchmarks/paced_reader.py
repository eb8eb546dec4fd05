"""A training job that reads a mount epoch after epoch, at most at a rate, until its input ends.

    python -m benchmarks.paced_reader SNAPSHOT ROOT SEED GROUP BYTES_PER_S

The dataset is a tree of `harness.make_tree`. Each epoch is in a chunk-wise shuffled order of its
own, which the mount is told. Every half second it prints a line of JSON: the time by the clock that
all processes share, the epoch, the bytes that were read until then, and the files with wrong bytes.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.epoch_reader import read_file, wait_until_followed
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot

_REPORT_S = 0.5
_STEP = 16
"""Files between two stores of the position."""
_BEHIND_S = 0.5
"""The most time that the job makes up for after it has waited: it has computed meanwhile."""


class Pace:
    """A limit on what a job reads a second; a job that waited for data does not catch up."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._due = bytes_per_s, time.monotonic()

    def wait(self, size_bytes: int) -> None:
        """Compute on `size_bytes` that were read."""
        now = time.monotonic()
        self._due = max(self._due, now - _BEHIND_S) + size_bytes / self._bytes_per_s
        if self._due > now:
            time.sleep(self._due - now)


def main() -> None:
    snapshot_path, root, seed, group, rate = sys.argv[1:]
    pace, before = Pace(float(rate)), None
    read = wrong = epoch = 0
    reported = 0.0
    with Snapshot.open(Path(snapshot_path)) as snapshot:
        while True:
            order = shuffle_order(snapshot.chunk_first_inode, int(seed), epoch, int(group))
            inodes = np.array(order.inodes)
            paths = snapshot.paths_text(inodes).decode().splitlines()
            [length] = set(snapshot.columns.length[inodes].tolist())
            content = random.Random(1).randbytes(length + len(paths))  # as make_tree
            plan = ReadingPlan(str(snapshot.id), inodes, np.array(order.group_start))
            told = announce(Path(root), plan, after="" if before is None else before.id)
            if told is None:
                sys.exit("the plan was not accepted")
            if before is not None:
                before.remove()
            wait_until_followed(root, len(paths))
            for at, path in enumerate(paths, 1):
                number = int(path[-len("0000000.jpg") : -len(".jpg")])
                wrong += read_file(os.path.join(root, path)) != content[number : number + length]
                read += length
                pace.wait(length)
                if at % _STEP == 0 or at == len(paths):
                    told.position = at
                now = time.monotonic()
                if now - reported >= _REPORT_S:
                    reported = now
                    line = {"time": now, "epoch": epoch, "bytes": read, "wrong": wrong}
                    print(json.dumps(line), flush=True)
                    if select.select([sys.stdin], [], [], 0)[0]:
                        told.remove()
                        return
            before, epoch = told, epoch + 1


if __name__ == "__main__":
    main()

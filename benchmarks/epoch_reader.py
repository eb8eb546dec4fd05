"""A training job's reader: it reads a mounted dataset in its own shuffled orders, epoch by epoch.

    python -m benchmarks.epoch_reader SNAPSHOT ROOT SEED GROUP

The dataset is a tree of `harness.make_tree`. For each line "EPOCH" on standard input it announces
that epoch's chunk-wise shuffled order to the mount, reads all files in it, and prints a line of
JSON: the seconds, and how many files had wrong bytes. The plan of an epoch stays announced until
the next one or the end of the input.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.mount_contenders import statistics
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot

_LAID_OUT_S = 60.0
_STEP = 64
"""Files between two stores of the position."""


def main() -> None:
    snapshot_path, root, seed, group = sys.argv[1:]
    before = None
    with Snapshot.open(Path(snapshot_path)) as snapshot:
        for line in sys.stdin:
            order = shuffle_order(snapshot.chunk_first_inode, int(seed), int(line), int(group))
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
            began, wrong = time.perf_counter(), 0
            for start in range(0, len(paths), _STEP):
                for path in paths[start : start + _STEP]:
                    number = int(path[-len("0000000.jpg") : -len(".jpg")])
                    wrong += _read(os.path.join(root, path)) != content[number : number + length]
                told.position = min(start + _STEP, len(paths))
            print(json.dumps({"seconds": time.perf_counter() - began, "wrong": wrong}), flush=True)
            before = told
        if before is not None:
            before.remove()


def wait_until_followed(root: str, files: int) -> None:
    """Wait until the mount fetches along an order of so many files, from its beginning."""
    deadline = time.monotonic() + _LAID_OUT_S
    while time.monotonic() < deadline:
        plan = statistics(Path(root))["plan"]
        if plan["files"] == files and plan["position"] < _STEP and plan["window_bytes"]:
            return
        time.sleep(0.02)
    sys.exit("the plan is not followed")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    main()

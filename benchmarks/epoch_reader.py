"""A training job's reader: it reads a mounted dataset in its own shuffled orders, epoch by epoch.

    python -m benchmarks.epoch_reader SNAPSHOT ROOT SEED GROUP [late|ahead|untold]

The dataset is a tree of `harness.make_tree`. For each line "EPOCH" on standard input it announces
that epoch's chunk-wise shuffled order to the mount, reads all files in it, and prints a line of
JSON: the seconds, and how many files had wrong bytes. The plan of an epoch stays announced until
the next one or the end of the input. With `ahead` it announces the next epoch's order too while it
reads one, as a sampler does, and with `untold` none.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.mount_contenders import statistics
from dieselfs.prefetch.announcement import Published, announce
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot

_LAID_OUT_S = 60.0
_STEP = 64
"""Files between two stores of the position."""


class Teller:
    """The plans of a reader, as it announces them to its mount."""

    def __init__(self, root: Path, orders: Callable[[int], ReadingPlan], when: str) -> None:
        self._root, self._orders, self._when = root, orders, when
        self._plans: dict[int, Published] = {}

    def begin(self, epoch: int) -> Published | None:
        """Announce the plan of an epoch, and end those before it; None: none is told."""
        if self._when == "untold":
            return None
        self._announce(epoch)
        for other in [other for other in self._plans if other < epoch]:
            self._plans.pop(other).remove()
        wait_until_followed(str(self._root), len(self._orders(epoch)))
        return self._plans[epoch]

    def go_on(self, epoch: int) -> None:
        """Announce the epoch after this one, once, if that is told ahead."""
        if self._when == "ahead":
            self._announce(epoch + 1)

    def _announce(self, epoch: int) -> None:
        if epoch not in self._plans:
            before = self._plans.get(epoch - 1)
            after = "" if before is None else before.id
            told = announce(self._root, self._orders(epoch), after=after)
            if told is None:
                sys.exit("the plan was not accepted")
            self._plans[epoch] = told

    def close(self) -> None:
        for plan in self._plans.values():
            plan.remove()


def main() -> None:
    snapshot_path, root, seed, group, *when = sys.argv[1:]
    with Snapshot.open(Path(snapshot_path)) as snapshot:

        @cache
        def order_of(epoch: int) -> ReadingPlan:
            order = shuffle_order(snapshot.chunk_first_inode, int(seed), epoch, int(group))
            starts = np.array(order.group_start)
            return ReadingPlan(str(snapshot.id), np.array(order.inodes), starts)

        teller = Teller(Path(root), order_of, when[0] if when else "late")
        for line in sys.stdin:
            epoch = int(line)
            inodes = order_of(epoch).inodes
            paths = snapshot.paths_text(inodes).decode().splitlines()
            [length] = set(snapshot.columns.length[inodes].tolist())
            content = random.Random(1).randbytes(length + len(paths))  # as make_tree
            told = teller.begin(epoch)
            began, wrong = time.perf_counter(), 0
            for start in range(0, len(paths), _STEP):
                for path in paths[start : start + _STEP]:
                    number = int(path[-len("0000000.jpg") : -len(".jpg")])
                    data = read_file(os.path.join(root, path))
                    wrong += data != content[number : number + length]
                if told is not None:
                    told.position = min(start + _STEP, len(paths))
                    teller.go_on(epoch)
            print(json.dumps({"seconds": time.perf_counter() - began, "wrong": wrong}), flush=True)
        teller.close()


def wait_until_followed(root: str, files: int) -> None:
    """Wait until the mount fetches along an order of so many files, from its beginning."""
    deadline = time.monotonic() + _LAID_OUT_S
    while time.monotonic() < deadline:
        plan = statistics(Path(root))["plan"]
        if plan["files"] == files and plan["position"] < _STEP and plan["window_bytes"]:
            return
        time.sleep(0.02)
    sys.exit("the plan is not followed")


def read_file(path: str) -> bytes:
    """Return the file's content."""
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    main()

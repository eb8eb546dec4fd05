"""A reader that tells the mount its order, at home or away, and then reads in it.

    python -m benchmarks.told_reader [--away] SNAPSHOT ROOT LIST GROUP READER [FLAG …]

The order is the chunk-wise shuffled one of seed 1 with groups of GROUP chunks. It is announced as a
sampler announces it. When the mount has laid it out, `READER -w FLAG … ROOT LIST` reads it and
prints what it found. With --away it becomes another user, in a mount namespace and with a /dev/shm
of its own: so the plan goes through the mount. LIST is written first, if it is missing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.mount_contenders import statistics
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.foreign_plan import ForeignPlanFile
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot

STRANGER = 61003
_NEW_MOUNT_NAMESPACE = 0x20000
_LAID_OUT_S = 60.0


def go_away() -> None:
    if ctypes.CDLL(None).unshare(_NEW_MOUNT_NAMESPACE):
        sys.exit("no mount namespace can be made")
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"],
    ):
        subprocess.run(command, check=True)
    os.setgroups([])
    os.setresgid(STRANGER, STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--away", action="store_true")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("list", type=Path)
    parser.add_argument("group", type=int)
    parser.add_argument("reader", type=Path)
    options, flags = parser.parse_known_args()
    with Snapshot.open(options.snapshot) as snapshot:
        order = shuffle_order(snapshot.chunk_first_inode, 1, 0, options.group)
        plan = ReadingPlan(str(snapshot.id), np.array(order.inodes), np.array(order.group_start))
        if not options.list.exists():
            options.list.write_bytes(snapshot.paths_text(order.inodes))
    if options.away:
        go_away()
    told = announce(options.root, plan)
    if told is None or isinstance(told, ForeignPlanFile) != options.away:
        sys.exit(f"the plan was told as {told}")
    deadline = time.monotonic() + _LAID_OUT_S
    while not statistics(options.root)["plan"]["files"] and time.monotonic() < deadline:
        time.sleep(0.01)
    done = subprocess.run(
        [options.reader, "-w", *flags, options.root, options.list], check=False
    ).returncode
    told.remove()
    return done


if __name__ == "__main__":
    sys.exit(main())

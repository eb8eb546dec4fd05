"""What does it cost to tell a plan of a million files through the mount?

The names are made up: a snapshot, but no chunks, since only the plan is of interest. A mount of it
is told one shuffled order of all files, as a reader tells it that cannot write into the task's
folder: by writing a file (front `erofs`), and by an ioctl (front `fuse`, or a read-only view).
*time* is from the first byte until the mount says that it follows the plan. *requests* are those
that bring bytes. *memory* is the growth of the server's own memory (anonymous pages) while the plan
is told, and *followed* its peak until the answer, with the layout of the order that any plan needs.
Expectation: 4 bytes a file in WRITEs of 124 KiB are 32 requests, in ioctls of 16 KiB 245; the plan
is 4 MB; 0.2 s go to the layout of the order.

    python -m benchmarks.bench_foreign_plan [--files 1000000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench_snapshot import build, make_dataset
from benchmarks.harness import report, scratch, spread
from benchmarks.mount_contenders import statistics
from dieselfs.prefetch.announcement import mount_document
from dieselfs.prefetch.foreign_plan import ForeignPlanFile
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.shuffle.order import shuffle_order
from metadata.snapshot import Snapshot

MIB = 1 << 20
BARS = {"time_s": 0.5, "requests": 300, "memory_mib": 16}
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)
_TIMEOUT_S = 60.0


def anonymous_bytes(pid: int) -> int:
    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


class Peak:
    """The peak of a process' anonymous memory above what it was, looked at each millisecond."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, anonymous_bytes(pid)
        self.bytes = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ends.wait(0.001):
            self.bytes = max(self.bytes, anonymous_bytes(self._pid) - self._before)

    def end(self) -> int:
        self._ends.set()
        self._thread.join()
        return self.bytes


@contextmanager
def mounted(folder: Path, snapshot: Path, front: str) -> Iterator[Path]:
    root, store = folder / "mnt", folder / "store"
    for path in (root, store):
        path.mkdir(exist_ok=True)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "benchmarks.slow_mount",
        store,
        snapshot,
        root,
        "--fast",
    ]
    daemon = subprocess.Popen(
        [*command, "--memory", str(64 << 30), "--front", front],
        stderr=(folder / "daemon.log").open("ab"),
    )
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while not mount_document(root):
            if daemon.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"no mount: {(folder / 'daemon.log').read_text()}")
            time.sleep(0.02)
        yield root
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)


def tell(root: Path, plan: ReadingPlan) -> dict[str, float]:
    """Tell a plan and withdraw it; return the figures of one round."""
    server = mount_document(root)["server_pid"]
    folder = root / ".dieselfs" / "plan"
    before = statistics(root)["plan_sources"]["foreign"]["requests"]
    told = ForeignPlanFile(folder, plan, "", lambda name: False)
    peak = Peak(server)
    begin = time.perf_counter()
    told.tell(0)
    told_s, memory = time.perf_counter() - begin, peak.end()
    peak = Peak(server)
    begin = time.perf_counter()
    answer = json.loads((folder / told.name).read_bytes())
    elapsed_s = told_s + time.perf_counter() - begin
    followed = peak.end() + memory
    assert answer["accepted"], answer
    sources = statistics(root)["plan_sources"]
    assert sources["mount"] == 1, sources
    told.remove()
    return {
        "time_s": elapsed_s,
        "told_s": told_s,
        "requests": sources["foreign"]["requests"] - before,
        "memory_mib": memory / MIB,
        "followed_mib": followed / MIB,
    }


def measure(snapshot: Path, folder: Path, front: str, rounds: int) -> None:
    with Snapshot.open(snapshot) as opened, mounted(folder, snapshot, front) as root:
        order = shuffle_order(opened.chunk_first_inode, seed=1, epoch=0)
        plan = ReadingPlan(str(opened.id), order.inodes, order.group_start)
        tell(root, plan)
        found = [tell(root, plan) for _ in range(rounds)]
    figures = {name: spread([each[name] for each in found]) for name in found[0]}
    kept = {name: max(each[name] for each in found) <= bar for name, bar in BARS.items()}
    report(f"a plan of {len(plan)} files through the front {front}", **figures, kept=kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench_foreign_plan needs root")
    with scratch("foreign-plan") as folder:
        snapshot = build(make_dataset(options.files, 1000), folder)
        for front in ("erofs", "fuse"):
            measure(snapshot, folder, front, options.rounds)


if __name__ == "__main__":
    main()

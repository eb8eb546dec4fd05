"""Does memory for a few percent of a dataset do the work of memory for all of it, over a slow disk,
when the order is known?

The disk is made up (`slow_store.SlowStore`): 150 MB/s, 8.3 ms a seek, one queue. So a chunk of 4
MiB takes 36.3 ms and chunks come at 115 MB/s, 28,200 files of 4 KiB or 1,025 of 110 KiB a second;
read one by one in random order, as from a directory on such a disk, they come at 120 and 110 a
second (235 and 9.3 times slower). A mount is told its order (`--shuffle`) and gets memory for 2% of
the dataset. Node memory and page cache together are measured by a control group that the daemon and
the reader are in: the peak of all that it is charged for files and shared memory, sampled 50 times
a second. A chunk-wise shuffle is only worth something if it mixes classes: its *classes per batch*,
distinct class folders in 256 consecutive samples, are printed with every rate (100 folders: 92 for
a full shuffle).

    fast     the reader is faster than the disk: its rate over that of whole chunks from the disk
    paced    the reader takes 80% of the disk's rate: its rate over that of the same reader with
             everything in the page cache; how many files it waits for
    single   files read one by one in random order
    told     the paced reader tells its plan itself (`told_reader`): as another user in another
             mount namespace, through the mount, against the same user, in shared memory

As root:

    python -m benchmarks.bench_plan [--only fast,paced,single,told] [--files 524288] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import mount_contenders as contenders
from benchmarks.control_group import GROUPS, ControlGroup
from benchmarks.harness import dlcmd, make_tree, scratch, spread
from benchmarks.mount_bars import REPORTED, Bar, Result, judge, show_table
from benchmarks.slow_store import SlowStore
from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.shuffle.class_labels import class_folder_labels
from dieselfs.shuffle.quality import report as quality
from metadata.snapshot import Snapshot

FOLDERS = 100
GIVEN = {4 << 10: 0.008, 110 << 10: 0.017}
"""The part of the dataset that is given as --memory, by the size of files. The control group is
charged for more: names in directories' pages (24 bytes a file), plans (8 bytes a file), and what
the store's files leave in the page cache until they are dropped (a chunk or two). All of it is to
be 2%."""
SEEK_S, BYTES_PER_S = 8.3e-3, 150e6
RATE_BAR = Bar(least=0.99)
"""The reader's rate over the disk's rate of whole chunks; a paced reader's over its own with
everything in the page cache.
"""
WAITS_BAR = Bar(most=0.003)
"""The part of the files for which a paced reader waits longer than 1 ms."""
TOLD_RATE_BAR = Bar(least=0.98)
"""The rate of a reader elsewhere over that of the same user's."""
TOLD_WAITS_BAR = Bar(most=0.002)
"""The part of the files for which it waits longer than 1 ms, less that of the same user's."""
MEMORY_BAR = Bar(most=0.02)
"""Page cache and shared memory over the bytes of the dataset."""
_LISTED_TIMEOUT_S = 60


@dataclass(frozen=True)
class Packed:
    folder: Path
    snapshot: Path
    size_bytes: int
    files: int
    payload_bytes: int
    chunks: int

    @property
    def chunk_rate(self) -> float:
        """Bytes a second that the disk gives of whole chunks."""
        whole = sum(path.stat().st_size for path in (self.folder / "store").rglob("chunks/*/*"))
        return self.payload_bytes / (self.chunks * SEEK_S + whole / BYTES_PER_S)

    def __str__(self) -> str:
        return f"{self.files} files of {self.size_bytes >> 10} KiB, {self.chunks} chunks"


@contextmanager
def packed(files: int, size_bytes: int) -> Iterator[Packed]:
    with scratch("plan") as folder:
        contenders.say(f"making {files} files of {size_bytes} bytes")
        make_tree(folder / "source", files, FOLDERS, size_bytes, processes=os.cpu_count() or 1)
        dlcmd("put", "-q", f"{folder}/source/", "dl://bench", folder=folder)
        dlcmd("snapshot", "create", "-q", "bench", folder=folder)
        shutil.rmtree(folder / "source")
        [path] = (folder / "data").rglob("*.snapshot")
        with Snapshot.open(path) as snapshot:
            payload, chunks = snapshot.total_bytes, snapshot.chunk_count
        yield Packed(folder, path, size_bytes, files, payload, chunks)


def choose_group(data: Packed, memory_bytes: int) -> int:
    """Half of the chunks that the memory holds: two are under way, or the next group comes, while
    one is read."""
    return max(memory_bytes // (data.payload_bytes // data.chunks) // 2, 1)


def classes_per_batch_of(data: Packed, group: int) -> float:
    with Snapshot.open(data.snapshot) as snapshot:
        [found] = quality(snapshot, [group], class_folder_labels(snapshot), seed=1).groups
    return found.order.classes_per_batch.mean


@contextmanager
def mounted(data: Packed, group: ControlGroup | None, *options: str) -> Iterator[Path]:
    """Our mount over the slow disk, listed, its daemon in the control group if there is one."""
    root = data.folder / "mnt"
    root.mkdir(exist_ok=True)
    # What it only reads is charged to this process, which touches it first.
    data.snapshot.read_bytes()
    daemon = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.slow_mount",
            data.folder / "store",
            data.snapshot,
            root,
            *options,
        ],
        # Nothing here has threads that hold locks it needs.
        preexec_fn=None if group is None else group.enter,
        stderr=(data.folder / "daemon.log").open("ab"),
    )
    try:
        deadline = time.monotonic() + _LISTED_TIMEOUT_S
        while not (root / ".dieselfs/dataset.json").exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"no mount: {(data.folder / 'daemon.log').read_text()}")
            time.sleep(0.02)
        yield root
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)


def in_plan_order(data: Packed, root: Path, group: int) -> Path:
    """The mount's own list. It lies outside of the control group's charge: this process reads
    it."""
    return contenders.in_chunkwise_order(_Named(data.folder), root, group)


@dataclass(frozen=True)
class _Named:
    folder: Path


def read_in(
    group: ControlGroup, reader: Path, root: Path, order: Path, *flags: str
) -> dict[str, Any]:
    done = subprocess.run(
        [reader, "-w", *flags, root, order],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=group.enter,
    )
    return dict(json.loads(done.stdout))


def epochs(
    data: Packed,
    reader: Path,
    rounds: int,
    share: float | None,
    group_size: int | None,
    pace: float | None,
    front: str,
) -> list[Result]:
    """One epoch of a fresh mount with little memory, and where it is paced one of a mount that has
    everything in the page cache."""
    memory = int((share or GIVEN[data.size_bytes]) * data.payload_bytes)
    group_size = group_size or choose_group(data, memory)
    classes_per_batch = classes_per_batch_of(data, group_size)
    rate = data.chunk_rate
    flags = [] if pace is None else ["-r", str(pace * rate)]
    rates, cached, waits, peaks, reads = [], [], [], [], []
    longest = 0.0
    for _ in range(rounds):
        with ControlGroup() as charged:
            options = [
                *("--memory", str(memory)),
                *("--group", str(group_size)),
                *("--requests", str(data.folder / "requests")),
                *("--front", front),
            ]
            with mounted(data, charged, *options) as root:
                contenders.list_all(root)
                order = in_plan_order(data, root, group_size)
                charged.start_over()
                before = contenders.statistics(root)
                epoch = read_in(charged, reader, root, order, *flags)
                peaks.append(charged.peak_bytes / data.payload_bytes)
                after = contenders.statistics(root)
            rates.append(epoch["bytes"] / epoch["seconds"])
            waits.append(epoch["waits"] / epoch["files"])
            longest = max(longest, epoch["longest"])
            asked = contenders.read_requests(after) - contenders.read_requests(before)
            reads.append(asked / epoch["files"])
            contenders.say(f"  {epoch} {after['plan']} {after['page_cache']}")
            if pace is not None:
                cached.append(_cached(data, reader, order, flags, front))
    how = "as fast as it can" if pace is None else f"at {pace:.0%} of the disk's rate"
    question = (
        f"slow disk, {data}, memory for {memory / data.payload_bytes:.1%}, {front}, reader {how}"
    )
    over = [each / rate for each in rates]
    if pace is not None:
        over = [own / base for own, base in zip(rates, cached, strict=True)]
    return [
        judge(
            f"{question}: rate x {'the disk' if pace is None else 'cached'}",
            over,
            RATE_BAR,
            classes_per_batch=classes_per_batch,
            group=group_size,
            over_disk=spread([each / rate for each in rates]),
            files_per_s=spread([each / data.size_bytes for each in rates]),
            disk_files_per_s=rate / data.size_bytes,
            longest_wait_s=longest,
            read_requests_per_file=spread(reads),
        ),
        judge(f"{question}: files waited for", waits, REPORTED if pace is None else WAITS_BAR),
        judge(f"{question}: peak of page cache and shared memory", max(peaks), MEMORY_BAR),
    ]


def _cached(data: Packed, reader: Path, order: Path, flags: list[str], front: str) -> float:
    """The same reader, with every file in the page cache."""
    with (
        ControlGroup() as charged,
        mounted(data, charged, "--memory", str(8 << 30), "--fast", "--front", front) as root,
    ):
        contenders.list_all(root)
        read_in(charged, reader, root, order)
        epoch = read_in(charged, reader, root, order, *flags)
    return float(epoch["bytes"] / epoch["seconds"])


def told(
    data: Packed,
    reader: Path,
    rounds: int,
    share: float | None,
    group_size: int | None,
    front: str,
) -> list[Result]:
    """One epoch of a fresh mount with little memory for each way to tell the plan, in turns."""
    memory = int((share or GIVEN[data.size_bytes]) * data.payload_bytes)
    group_size = group_size or choose_group(data, memory)
    for folder in (data.folder, reader.parent):  # another user reads there
        folder.chmod(0o755)
    options = ["--memory", str(memory), "--front", front, "--allow-other"]
    found: dict[str, list[dict[str, Any]]] = {"home": [], "away": []}
    for number in range(2 * rounds):
        way = "away" if number % 2 else "home"
        with ControlGroup() as charged, mounted(data, charged, *options) as root:
            contenders.list_all(root)
            command: list[Any] = [
                *(sys.executable, "-m", "benchmarks.told_reader"),
                *(["--away"] if way == "away" else []),
                *(data.snapshot, root, data.folder / "told-order", str(group_size), reader),
                *("-r", str(0.8 * data.chunk_rate)),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[way].append(json.loads(done.stdout))
            counters = contenders.statistics(root)
            contenders.say(f"  {way}: {found[way][-1]} {counters['plan']}")
    rates = {way: [each["bytes"] / each["seconds"] for each in found[way]] for way in found}
    waits = {way: [each["waits"] / each["files"] for each in found[way]] for way in found}
    question = f"slow disk, {data}, memory for {memory / data.payload_bytes:.1%}, {front}"
    pairs = zip(rates["away"], rates["home"], strict=True)
    more = zip(waits["away"], waits["home"], strict=True)
    return [
        judge(
            f"{question}: a reader elsewhere x the same user's",
            [away / home for away, home in pairs],
            TOLD_RATE_BAR,
            group=group_size,
            files_per_s=spread([each / data.size_bytes for each in rates["away"]]),
        ),
        judge(
            f"{question}: files a reader elsewhere waited for, less the same user's",
            [away - home for away, home in more],
            TOLD_WAITS_BAR,
            waits=spread(waits["away"]),
        ),
    ]


def single(data: Packed, files: int = 500) -> list[Result]:
    """What users have today: each file one read of the disk, in random order, one at a time."""
    with Snapshot.open(data.snapshot) as snapshot:
        reader = ChunkReader(
            SlowStore(LocalDirectory(data.folder / "store"), SEEK_S, BYTES_PER_S), snapshot.dataset
        )
        chosen = random.Random(7).sample(range(snapshot.file_count), files)
        begin = time.perf_counter()
        for inode in chosen:
            extent = snapshot.extent(inode)
            reader.read(extent, 0, extent.length)
        rate = files / (time.perf_counter() - begin)
    return [
        judge(
            f"slow disk, {data}: whole chunks x files one by one in random order",
            data.chunk_rate / data.size_bytes / rate,
            REPORTED,
            files_per_s=rate,
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="fast,paced,single")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=524_288, help="of 4 KiB; 0: none")
    parser.add_argument("--large-files", type=int, default=19_456, help="of 110 KiB; 0: none")
    parser.add_argument("--share", type=float, help="of the dataset: what --memory is")
    parser.add_argument("--front", default="erofs", help="as of dlcmd mount")
    parser.add_argument(
        "--group", type=int, help="chunks; the default is half of what the memory holds"
    )
    options = parser.parse_args()
    if os.geteuid() != 0 or not GROUPS.is_dir():
        sys.exit("bench_plan needs root and a memory control group (version 1)")
    known = sections(options.rounds, options.front, options.share, options.group)
    results: list[Result] = []
    with contenders.reader() as compiled:
        for files, size in ((options.files, 4 << 10), (options.large_files, 110 << 10)):
            if files:
                with packed(files, size) as data:
                    for name in options.only.split(","):
                        results += known[name](data, compiled.program)
    show_table(results)


def sections(
    rounds: int, front: str = "erofs", share: float | None = None, group: int | None = None
) -> dict[str, Callable[[Packed, Path], list[Result]]]:
    return {
        "fast": lambda data, reader: epochs(data, reader, rounds, share, group, None, front),
        "paced": lambda data, reader: epochs(data, reader, rounds, share, group, 0.8, front),
        "single": lambda data, reader: single(data),
        "told": lambda data, reader: told(data, reader, rounds, share, group, front),
    }


if __name__ == "__main__":
    main()

"""What do readers see of a server that is killed, of a newer snapshot, of an upgrade?

Eight processes open, read and compare files with what they must hold, in random order; one read in
eight is of a file that has been open for a while, one in sixteen through a memory map. Meanwhile
the page cache is dropped again and again, so that reads reach the server, which is killed with
SIGKILL, or shows a snapshot with one file more, or is replaced by the installed version. Small
files (buffered) and large ones (direct) have half of it each. Expectation: a server is forked,
opens the store and asks for what was not answered: 0.1 to 0.3 s, and readers see no error.

As root:

    python -m benchmarks.bench_survival [--only kills,swaps,upgrades] [--kills 200] [--quick]
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks import mount_contenders as contenders
from benchmarks.harness import DLCMD, dlcmd_environment
from benchmarks.mount_bars import Bar, Result, judge, show_table
from benchmarks.mount_contenders import Dataset, MountKind

ERRORS_BAR = Bar(most=0)
STALL_BAR = Bar(most=1.0)
"""Seconds that one file took, open to close."""
READERS = 8
FOLDERS = 100
_CACHED_READS = 50
"""An open file is kept for so many reads."""
_RECOVERY_S = 30.0
_PAUSE_S = 0.25
"""At most, between a dropped page cache and what happens then."""
_FAILURES_SHOWN = 3
READS, ERRORS, WRONG, LONGEST = range(4)


@dataclass(slots=True)
class Readers:
    """Processes that read, and what they have seen since `start_over`."""

    seen: list[Any]
    processes: list[BaseProcess]

    def start_over(self) -> None:
        for each in self.seen:
            each[:] = [0.0] * 4

    def total(self, what: int) -> int:
        return int(sum(each[what] for each in self.seen))

    @property
    def longest_s(self) -> float:
        return float(max(each[LONGEST] for each in self.seen))

    @property
    def died(self) -> int:
        return sum(not process.is_alive() for process in self.processes)


@contextmanager
def reading(data: Dataset, root: Path) -> Iterator[Readers]:
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    seen = [context.Array("d", 4, lock=False) for _ in range(READERS)]
    processes = [
        context.Process(target=_read, args=(number, data, root, each, ended), daemon=True)
        for number, each in enumerate(seen)
    ]
    for process in processes:
        process.start()
    try:
        yield Readers(seen, list(processes))
    finally:
        ended.set()
        for process in processes:
            process.join(_RECOVERY_S)
            if process.is_alive():
                contenders.say(f"reader {process.pid} hangs")
                process.kill()


def _read(number: int, data: Dataset, root: Path, seen: Any, ended: Any) -> None:
    content = random.Random(1).randbytes(data.size_bytes + data.files)  # as harness.make_tree
    chosen = random.Random(number)
    cached: tuple[int, int] | None = None
    shown = 0
    while not ended.is_set():
        file = chosen.randrange(data.files)
        path = f"{root}/class{file % FOLDERS:04d}/image{file:07d}.jpg"
        begin = time.monotonic()
        try:
            turn = int(seen[READS])
            if cached is not None and turn % _CACHED_READS == 0:
                os.close(cached[0])
                cached = None
            if cached is None:
                cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC), file
            if turn % 8 == 0:
                file, got = cached[1], os.pread(cached[0], data.size_bytes + 1, 0)
            elif turn % 16 == 1:
                got = _mapped(path)
            else:
                with open(path, "rb", buffering=0) as opened:
                    got = opened.read()
            if got != content[file : file + data.size_bytes]:
                seen[WRONG] += 1
                print(f"  reader {number}: wrong bytes in {path}", file=sys.stderr, flush=True)
        except OSError as error:
            seen[ERRORS] += 1
            shown += 1
            if shown <= _FAILURES_SHOWN:
                print(f"  reader {number}: {error}", file=sys.stderr, flush=True)
            time.sleep(0.01)
        seen[READS] += 1
        seen[LONGEST] = max(seen[LONGEST], time.monotonic() - begin)


def _mapped(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as mapped:
            return mapped[:]
    finally:
        os.close(fd)


@dataclass(slots=True)
class Mounted:
    data: Dataset
    root: Path
    added: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each event, until the mount answers."""

    def server(self) -> int:
        """The process that serves now; `OSError` while none does."""
        try:
            return int(contenders.described(self.root)["server_pid"])
        except json.JSONDecodeError as error:
            raise OSError(str(error)) from error

    def await_server(self, other_than: int) -> None:
        deadline = time.monotonic() + _RECOVERY_S
        while time.monotonic() < deadline:
            try:
                if self.server() != other_than:
                    return
            except OSError:
                pass
            time.sleep(0.005)
        sys.exit(f"no other server after {_RECOVERY_S} s")

    def kill(self) -> None:
        server = self.server()
        begin = time.monotonic()
        os.kill(server, signal.SIGKILL)
        self.await_server(server)
        self.seconds.append(time.monotonic() - begin)

    def swap(self) -> None:
        """A snapshot with one file more, which is there when the command has returned."""
        self.added += 1
        name = f"added{self.added:04d}"
        source = self.data.folder / "added" / name
        source.parent.mkdir(exist_ok=True)
        source.write_text(name)
        self._dlcmd("put", str(source), f"dl://bench/added/{name}")
        begin = time.monotonic()
        self._dlcmd("mount", "--refresh", "dl://bench", str(self.root))
        self.seconds.append(time.monotonic() - begin)
        if (self.root / "added" / name).read_text() != name:
            sys.exit(f"{name} is wrong after a swap")

    def upgrade(self) -> None:
        begin = time.monotonic()
        self._dlcmd("mount", "--upgrade", "dl://bench", str(self.root))
        self.seconds.append(time.monotonic() - begin)

    def _dlcmd(self, verb: str, *arguments: str) -> None:
        environment = dlcmd_environment(self.data.folder)
        subprocess.run([*DLCMD, verb, "-q", *arguments], env=environment, check=True)


def survive(kind: MountKind, counts: dict[str, int], files: int, large_files: int) -> list[Result]:
    """Half of the events with small files, half with large ones; one result for all."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
    for number, size_bytes in ((files, 4 << 10), (large_files, 110 << 10)):
        with (
            contenders.dataset(number, size_bytes, FOLDERS) as data,
            contenders.mounted(data, kind) as root,
            reading(data, root) as readers,
        ):
            mounted = Mounted(data, root)
            events: dict[str, Callable[[], None]] = {
                "kills": mounted.kill,
                "swaps": mounted.swap,
                "upgrades": mounted.upgrade,
            }
            for name, count in counts.items():
                found[name].append(
                    _happen(events[name], -(-count // 2), mounted, readers, f"{name}, {data}")
                )
    results = []
    for name, parts in found.items():
        happened = sum(part["events"] for part in parts)
        question = f"{happened} {name} under {READERS} readers, {kind.name}"
        total = {what: sum(part[what] for part in parts) for what in ("errors", "wrong", "died")}
        figures = {"reads": sum(part["reads"] for part in parts), **total}
        results += [
            judge(f"{question}: errors", sum(total.values()), ERRORS_BAR, **figures),
            judge(
                f"{question}: longest wait of a reader, s",
                max(part["longest_s"] for part in parts),
                STALL_BAR,
                by_size={part["data"]: part["longest_s"] for part in parts},
                seconds_each={part["data"]: part["seconds"] for part in parts},
            ),
        ]
    return results


def _happen(
    event: Callable[[], None], count: int, mounted: Mounted, readers: Readers, what: str
) -> dict[str, Any]:
    chosen = random.Random(count)
    mounted.seconds.clear()
    readers.start_over()
    for _ in range(count):
        contenders.drop_page_cache(mounted.data.folder)
        time.sleep(chosen.uniform(0.0, _PAUSE_S))
        event()
    time.sleep(_PAUSE_S)
    seen = {
        "data": str(mounted.data),
        "events": count,
        "reads": readers.total(READS),
        "errors": readers.total(ERRORS),
        "wrong": readers.total(WRONG),
        "died": readers.died,
        "longest_s": readers.longest_s,
        "seconds": {
            "median": statistics.median(mounted.seconds),
            "longest": max(mounted.seconds),
        },
    }
    contenders.say(f"{what}: {seen}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="kills,swaps,upgrades")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--swaps", type=int, default=50)
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--files", type=int, default=20_000, help="of 4 KiB")
    parser.add_argument("--large-files", type=int, default=2_000, help="of 110 KiB")
    parser.add_argument("--front", default="erofs", choices=list(contenders.FRONTS))
    parser.add_argument("--quick", action="store_true", help="a few of each: that it works")
    options = parser.parse_args()
    if options.quick:
        options.kills, options.swaps, options.upgrades = 6, 4, 2
        options.files, options.large_files = 2_000, 200
    if os.geteuid() != 0:
        sys.exit("bench_survival drops the kernel's caches: run it as root")
    counts = {name: getattr(options, name) for name in options.only.split(",")}
    kind = contenders.FRONTS[options.front]
    show_table(survive(kind, counts, options.files, options.large_files))


if __name__ == "__main__":
    main()

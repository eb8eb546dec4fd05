"""What every benchmark needs: made-up source trees, timed rounds of several contenders in turn, one
JSON line a question.

A machine may be shared and its speed may drift, so contenders take turns within a round, ratios are
taken round by round, and medians are reported with their spread.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DLCMD = [sys.executable, "-m", "dieselfs.cli"]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of each contender in each round."""

    seconds: Mapping[str, list[float]]

    def median(self, contender: str) -> float:
        return statistics.median(self.seconds[contender])

    def ratios(self, contender: str, baseline: str) -> list[float]:
        """How many times as fast as the baseline, round by round."""
        pairs = zip(self.seconds[contender], self.seconds[baseline], strict=True)
        return [base / own for own, base in pairs]


def run_rounds(
    contenders: Mapping[str, Callable[[], float | None]],
    rounds: int,
    warm_up: int = 1,
    *,
    alternates: bool = False,
    prepare: Callable[[int], None] = lambda number: None,
) -> Rounds:
    """Run all contenders in turn, `rounds` times after `warm_up`. A contender returns its own
    seconds, or None: timed from outside.

    `alternates`: every other round goes through them from the last to the first. `prepare` gets the
    number of the round that begins.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        prepare(number)
        turns = list(contenders.items())
        for name, contender in reversed(turns) if alternates and number % 2 else turns:
            begin = time.perf_counter()
            own = contender()
            elapsed = time.perf_counter() - begin if own is None else own
            if number >= warm_up:
                seconds[name].append(elapsed)
            print(
                f"  {name}: {elapsed:.3f} s{' (warm-up)' if number < warm_up else ''}",
                file=sys.stderr,
                flush=True,
            )
    return Rounds(seconds)


def report(question: str, **figures: object) -> None:
    """One JSON line on stdout; floats are rounded to four figures."""
    print(
        json.dumps(
            {"question": question, **{name: _rounded(value) for name, value in figures.items()}}
        ),
        flush=True,
    )


def report_with_bars(bars: Mapping[str, str], question: str, **figures: object) -> None:
    """The figures beside their bars on stderr, and `report`."""
    for name, value in figures.items():
        print(f"  {name:24} {value}  {bars.get(name, '')}", file=sys.stderr)
    report(question, **figures)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return value


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder for one benchmark, under $DIESELFS_BENCH_FOLDER or the system's temporary folder;
    removed afterwards."""
    folder = Path(
        tempfile.mkdtemp(prefix=f"dieselfs-{prefix}-", dir=os.environ.get("DIESELFS_BENCH_FOLDER"))
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_tree(root: Path, files: int, folders: int, size_bytes: int, processes: int = 1) -> None:
    """`files` files of random content in `folders` class folders, durable and in the page cache."""
    content = random.Random(1).randbytes(size_bytes + files)

    def make(part: int) -> None:
        for folder in range(part, folders, processes):
            path = root / f"class{folder:04d}"
            path.mkdir(parents=True)
            for number in range(folder, files, folders):
                fd = os.open(
                    f"{path}/image{number:07d}.jpg", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644
                )
                os.write(fd, content[number : number + size_bytes])
                os.close(fd)

    workers = [
        multiprocessing.get_context("fork").Process(target=make, args=(part,))
        for part in range(1, processes)
    ]
    for worker in workers:
        worker.start()
    make(0)
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"making {root} failed")
    sync(root)


def warm(root: Path) -> None:
    """Read everything below `root` once, so that the next reader finds it in the page cache."""
    subprocess.run(["tar", "cf", "-", "-C", root, "."], stdout=subprocess.DEVNULL, check=True)


def dlcmd(*arguments: str | Path, folder: Path, index: str | None = None) -> str:
    """Run `dlcmd` with its store, index and snapshots in `folder`; its standard output."""
    (folder / "store").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*DLCMD, *map(str, arguments)],
        env=dlcmd_environment(folder, index),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def dlcmd_environment(folder: Path, index: str | None = None) -> dict[str, str]:
    """Variables with which `dlcmd` finds all that it needs in `folder`."""
    return {
        **os.environ,
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": index or f"lmdb://{folder}/index",
        "XDG_DATA_HOME": f"{folder}/data",
        "PYTHONPATH": str(REPOSITORY),
    }


def empty(folder: Path) -> None:
    """Remove what is in `folder` and let the disk settle, so that no contender pays for another's
    writes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sync(folder)


def sync(folder: Path) -> None:
    """Make what was written durable, on this folder's file system alone: sync(2) waits for every
    other one, also for one that is broken."""
    subprocess.run(["sync", "--file-system", folder], check=True)

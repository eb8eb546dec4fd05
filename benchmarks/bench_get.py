"""Does `dlcmd get` copy a dataset out as fast as `cp -r` from a mount?

Both begin cold, with the mount there and the kernel's caches dropped, and write a new folder on the
same disk. The command is timed as a whole: `dlcmd get` with its start, `cp -r` without the mount's
(reported beside it). The copies are compared with the source.

Expectation: a file of 20 kB costs five system calls to create (open, write, utimensat, close,
rename), 50 us with Python's share, and 12,000 of them 0.6 s of processor time, in two processes.
Start and walk are 0.2 s, and reading 240 MB by chunks takes 0.3 s of processor time beside them. cp
and the mount's server, two processes too, need 1.1 s. So 1.5 times as fast; the bar is 1.0. More
jobs must not make it slower.

ext4 passes by all inodes that were deleted in the last minute before it takes one, so a copy that
is removed makes the next one up to three times as slow. Copies of many files therefore stay until
the end.

    python -m benchmarks.bench_get                    # 12,000 files of 20 kB
    python -m benchmarks.bench_get --files 50000 --size 1000
    python -m benchmarks.bench_get --files 12 --size 64000000
    python -m benchmarks.bench_get --before CHECKOUT  # beside an older version's dlcmd
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import DLCMD, dlcmd_environment, empty, report, run_rounds, spread
from benchmarks.mount_contenders import (
    Dataset,
    dataset,
    drop_all_caches,
    mounted,
    require_tools,
)

_JOBS = (None, 1, 8)
_MANY_FILES = 1000


def compare(data: Dataset, rounds: int, before: Path | None) -> None:
    made: list[float] = []
    contenders: dict[str, Callable[[], float | None]] = {"cp -r": lambda: _copied_by_cp(data, made)}
    for jobs in _JOBS:
        contenders[_name(jobs)] = lambda jobs=jobs: _got(data, jobs)
    if before is not None:
        contenders["before"] = lambda: _got(data, None, before)
    times = run_rounds(contenders, rounds, alternates=True)
    report(
        f"dlcmd get of {data}, cold, against cp -r from a cold mount",
        ratio=spread(times.ratios(_name(None), "cp -r")),
        **{f"{name}_s": spread(seconds) for name, seconds in times.seconds.items()},
        mount_s=spread(made),
        files_per_s=data.files / times.median(_name(None)),
        mb_per_s=data.payload_bytes / 1e6 / times.median(_name(None)),
        bar=1.0,
    )


def _name(jobs: int | None) -> str:
    return "dlcmd get" if jobs is None else f"dlcmd get -j {jobs}"


def _copied_by_cp(data: Dataset, made: list[float]) -> float:
    target = _new_target(data)
    begin = time.perf_counter()
    with mounted(data) as root:
        made.append(time.perf_counter() - begin)
        # The control directory is no part of the dataset.
        folders = sorted(root / name for name in os.listdir(root) if name != ".dieselfs")
        _start_cold(data)
        begin = time.perf_counter()
        subprocess.run(["cp", "-r", *folders, target], check=True)
        seconds = time.perf_counter() - begin
    _verify(data, target)
    return seconds


def _got(data: Dataset, jobs: int | None, checkout: Path | None = None) -> float:
    target = _new_target(data)
    environment = dlcmd_environment(data.folder)
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    many = [] if jobs is None else ["-j", str(jobs)]
    with mounted(data):
        _start_cold(data)
        begin = time.perf_counter()
        subprocess.run(
            [*DLCMD, "get", "-q", *many, "dl://bench", target],
            env=environment | {"PYTHONSAFEPATH": "1"},
            cwd=data.folder,
            check=True,
        )
        seconds = time.perf_counter() - begin
    _verify(data, target)
    return seconds


def _new_target(data: Dataset) -> Path:
    """An empty folder. Few files are removed at once, since they may be large."""
    before = [path for path in data.folder.iterdir() if path.name.startswith("copied-")]
    if data.files < _MANY_FILES:
        for path in before:
            shutil.rmtree(path)
    target = data.folder / f"copied-{len(before)}"
    empty(target)
    return target


def _start_cold(data: Dataset) -> None:
    """Nothing of the dataset is cached; the programs are, as on any machine in use."""
    drop_all_caches(data.folder)
    subprocess.run(
        [*DLCMD, "ls", "-q", "dl://bench"],
        env=dlcmd_environment(data.folder),
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _verify(data: Dataset, target: Path) -> None:
    subprocess.run(["diff", "-rq", data.source, target], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=12_000)
    parser.add_argument("--size", type=int, default=20_000, help="bytes of a file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout of an older version")
    parser.add_argument("--nice", type=int, default=0, help="such as -15, on a busy machine")
    options = parser.parse_args()
    require_tools()
    os.nice(options.nice)
    with dataset(options.files, options.size, folders=min(100, options.files)) as data:
        compare(data, options.rounds, options.before)


if __name__ == "__main__":
    main()

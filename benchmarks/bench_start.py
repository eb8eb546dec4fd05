"""How long does each way to start take: `dlcmd --help`, `dlcmd ls`, `import dieselfs`, a mount?

Wall time of whole processes, and the median of their CPU time, in turns, beside Python alone and
with what DieselFS cannot do without: click for the command line, NumPy for names. All modules are
compiled and in the page cache. *mount* is from typing `dlcmd mount` until the first READ is
answered: `dlcmd` with the default settings of one user and one node, its supervisor and its server.
Expectation: Python takes 20 ms, click 20 ms and NumPy 60 ms more, and a module of ours 0.4 ms, most
of it to make data classes.

    python -m benchmarks.bench_start [--rounds 21] [--imports]

`--imports` prints instead where the time of each start goes: the modules that take longest by
themselves, in milliseconds (`python -X importtime`, the least of five runs), and their number.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import REPOSITORY, report, run_rounds, scratch, spread

BARS_S = {
    "dlcmd --help": 0.06,
    "import dieselfs": 0.05,
    "dlcmd ls": 0.15,
    "dlcmd ls DATASET": 0.15,
    "mount until the first READ": 0.8,
}
PACKAGES = ("chunkstore", "metadata", "dieselfs")
DATASET, FILES = "images", 1000
_LONGEST = 15
_IMPORTED = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")


def environment_in(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose store and index are in `folder`."""
    left_out = ("DIESELFS_", "PYTHONDONTWRITEBYTECODE", "PYTHONPROFILEIMPORTTIME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "XDG_DATA_HOME": f"{folder}/data",
        "XDG_CONFIG_HOME": f"{folder}/config",
        "XDG_STATE_HOME": f"{folder}/state",
        "PYTHONPATH": str(REPOSITORY),
    }


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-P", *arguments]


def dlcmd(*arguments: str) -> list[str]:
    return python("-m", "dieselfs", *arguments)


STARTS = {
    "python": python("-c", "pass"),
    "python, click": python("-c", "import click"),
    "python, NumPy": python("-c", "import numpy"),
    "dlcmd --help": dlcmd("--help"),
    "import dieselfs": python("-c", "import dieselfs"),
    "dlcmd ls": dlcmd("ls"),
    "dlcmd ls DATASET": dlcmd("ls", DATASET),
}


def run(command: Sequence[str], environment: dict[str, str]) -> float:
    """Return the seconds of CPU time that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def mounted_until_first_read(folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds from the start of `dlcmd mount` until a file has been read."""
    mountpoint = folder / "mnt"
    mountpoint.mkdir(exist_ok=True)
    quiet = ("--quiet", "--no-index")
    begin = time.perf_counter()
    try:
        run(dlcmd("mount", *quiet, DATASET, str(mountpoint)), environment)
        assert (mountpoint / "0/0").read_bytes()
        return time.perf_counter() - begin
    finally:
        run(dlcmd("umount", "--quiet", str(mountpoint)), environment)


def imports(command: Sequence[str], environment: dict[str, str]) -> tuple[int, dict[str, float]]:
    """Return the number of modules, and the milliseconds of those that take longest."""
    least: dict[str, int] = {}
    for _ in range(5):
        done = subprocess.run(
            [command[0], "-X", "importtime", *command[1:]],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        for taken, module in _IMPORTED.findall(done.stderr):
            least[module] = min(int(taken), least.get(module, int(taken)))
    longest = sorted(least, key=least.__getitem__, reverse=True)[:_LONGEST]
    return len(least), {module: least[module] / 1000 for module in longest}


def make_dataset(folder: Path, environment: dict[str, str]) -> None:
    for number in range(FILES):
        path = folder / "source" / str(number % 10) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(4096))
    run(dlcmd("put", "--quiet", f"{folder}/source/", DATASET), environment)
    run(dlcmd("snapshot", "create", "--quiet", DATASET), environment)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--imports", action="store_true")
    parser.add_argument("--no-mount", action="store_true", help="for machines without /dev/fuse")
    options = parser.parse_args()
    for package in PACKAGES:
        compileall.compile_dir(REPOSITORY / package, quiet=1)
    with scratch("start") as folder:
        environment = environment_in(folder)
        make_dataset(folder, environment)
        if options.imports:
            for name, command in STARTS.items():
                number, longest = imports(command, environment)
                report(f"imports of {name}", modules=number, longest_ms=longest)
            return
        cpu: dict[str, list[float]] = {}

        def timed(name: str) -> None:
            cpu.setdefault(name, []).append(run(STARTS[name], environment))

        turns: dict[str, Callable[[], float | None]] = {
            name: partial(timed, name) for name in STARTS
        }
        if not options.no_mount:
            turns["mount until the first READ"] = lambda: mounted_until_first_read(
                folder, environment
            )
        times = run_rounds(turns, options.rounds)
    for name in turns:
        of_cpu = statistics.median(cpu[name]) if name in cpu else None
        report(
            f"seconds of {name}",
            **spread(times.seconds[name]),
            bar=BARS_S.get(name),
            cpu_s=of_cpu,
        )


if __name__ == "__main__":
    main()

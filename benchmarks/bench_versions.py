"""Is this version as fast as an older one? The same work in both, in turn; the ratio is the older
version's seconds over this one's, round by round.

`--before` names a checkout of the older version, with a `.venv` of its own; without it, seconds
alone are reported. Each measure runs in processes of one version alone, over one store that both
read. Expectation: 1 within the machine's noise, and more where a change was meant to help.

    python -m benchmarks.bench_versions --before ../older [--only warm,client,plan,put,start]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import REPOSITORY, dlcmd_environment, report, run_rounds, spread
from benchmarks.mount_contenders import FRONTS, Dataset, MountKind, Reader

SMALL, LARGE = 4 << 10, 110 << 10
CLIENT = """
import os, random, sys, time
from pathlib import Path
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client

folder, snapshot, mode, task = sys.argv[1:]
store, index = open_store(os.environ["DIESELFS_STORE"]), open_index(os.environ["DIESELFS_INDEX"])
with Client.connect("bench", store=store, index=index, snapshot_folder=Path(folder)) as client:
    client.load_meta(Path(snapshot))
    if mode == "epoch":
        client.open_memory(1 << 30, task=task)
        begin = time.perf_counter()
        paths = client.shuffle(seed=1, group_size=100)
        for path in paths:
            client.get(path)
    else:
        paths = client.shuffle(seed=1, group_size=100, memory_bytes=1 << 30, task=task)
        client.get_many(paths)
        client.load_meta(Path(snapshot))
        random.Random(7).shuffle(paths)
        wanted = paths if mode == "path" else [client.inode(path) for path in paths]
        get = client.get if mode == "path" else client.samples.read
        for one in wanted:
            get(one)
        begin = time.perf_counter()
        for _ in range(20):
            for one in wanted:
                get(one)
    print(time.perf_counter() - begin)
"""
"""Prints seconds; works with every version since Client.samples."""


@dataclass(frozen=True, slots=True)
class Version:
    """A checkout with its environment."""

    name: str
    root: Path

    @property
    def python(self) -> str:
        return str(self.root / ".venv/bin/python")

    def environment(self, folder: Path) -> dict[str, str]:
        return dlcmd_environment(folder) | {"PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}

    def run(self, folder: Path, *command: str | Path) -> str:
        """The output of a command of this version's Python."""
        return subprocess.run(
            [self.python, *map(str, command)],
            env=self.environment(folder),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def kind(self, front: str = "erofs") -> MountKind:
        command = (self.python, "-m", "dieselfs.cli")
        return MountKind(self.name, command, FRONTS[front].options, front, source=self.root)


Turns = Mapping[str, Callable[[], float | None]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout with its .venv")
    parser.add_argument("--only", default="warm,client,plan,put,start")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="few files, one round")
    options = parser.parse_args()
    contenders.require_tools()
    versions = [Version("now", REPOSITORY)]
    if options.before is not None:
        versions.append(Version("before", options.before.resolve()))
    for version in versions:
        subprocess.run(
            [version.python, "-m", "compileall", "-q", "chunkstore", "dieselfs", "metadata"],
            cwd=version.root,
            check=True,
        )
    asked = options.only.split(",")
    rounds = 1 if options.quick else options.rounds
    with contenders.reader() as reader:
        for size, files in ((SMALL, 20_000), (LARGE, 3_000)):
            with contenders.dataset(files // 10 if options.quick else files, size) as data:
                if "warm" in asked:
                    warm(data, reader, versions, rounds)
                if "client" in asked:
                    client(data, versions, rounds)
                if "plan" in asked:
                    plan(data, reader, versions, rounds)
                if "put" in asked and size == SMALL:
                    put_and_recover(data, versions, rounds)
                if "start" in asked and size == SMALL:
                    start(data, versions, rounds)


def compare(
    what: str, turns: Turns, rounds: int, prepare: Callable[[int], None] = lambda number: None
) -> None:
    times = run_rounds(turns, rounds, alternates=True, prepare=prepare)
    report(
        f"{what}: before / now",
        ratio=spread(times.ratios("now", "before")) if "before" in turns else None,
        seconds={name: times.median(name) for name in turns},
    )


def warm(data: Dataset, reader: Reader, versions: list[Version], rounds: int) -> None:
    """Files that the kernel has, in random order; they get other pages in each round, which makes
    more of a difference than a version does."""
    order = contenders.in_random_order(data)
    with ExitStack() as stack:
        roots = {
            version.name: stack.enter_context(contenders.mounted(data, version.kind()))
            for version in versions
        }
        reader.verify(list(roots.values()), order)

        def read_again(number: int) -> None:
            contenders.drop_page_cache(data.folder)
            for root in list(roots.values())[:: 1 if number % 2 else -1]:
                for _ in range(2):
                    reader.seconds(root, order)

        compare(
            f"warm mount, {data}",
            {name: lambda root=root: reader.seconds(root, order) for name, root in roots.items()},
            3 * rounds,
            read_again,
        )


def client(data: Dataset, versions: list[Version], rounds: int) -> None:
    """From node memory: files by path and by number, and an epoch that fills it."""
    [snapshot] = (data.folder / "data").rglob("*.snapshot")

    def seconds(version: Version, mode: str) -> float:
        task = f"bench-{version.name}-{os.getpid()}-{time.monotonic_ns()}"
        arguments = (data.folder / "client", snapshot, mode, task)
        return float(version.run(data.folder, "-c", CLIENT, *arguments))

    for mode, what in (
        ("path", "get by path from node memory"),
        ("number", "get by number from node memory"),
        ("epoch", "first epoch, chunk-wise, node memory empty"),
    ):
        turns = {
            version.name: lambda version=version, mode=mode: seconds(version, mode)
            for version in versions
        }
        compare(f"{what}, {data}", turns, rounds)


def plan(data: Dataset, reader: Reader, versions: list[Version], rounds: int) -> None:
    """An epoch in the planned order over a slow disk, caches empty."""
    [snapshot] = (data.folder / "data").rglob("*.snapshot")
    with contenders.mounted(data) as root:
        order = contenders.in_chunkwise_order(data, root, 10)

    def seconds(version: Version) -> float:
        contenders.drop_all_caches(data.folder)
        with slow_mount(version, data, snapshot) as root:
            return reader.seconds(root, order)

    turns = {version.name: lambda version=version: seconds(version) for version in versions}
    compare(f"epoch with a plan on a slow disk, {data}", turns, min(rounds, 5))


@contextmanager
def slow_mount(version: Version, data: Dataset, snapshot: Path) -> Iterator[Path]:
    root = data.folder / f"slow-{version.name}"
    root.mkdir(exist_ok=True)
    command = ["-m", "benchmarks.slow_mount", str(data.folder / "store"), str(snapshot), str(root)]
    command += ["--memory", str(256 << 20), "--group", "10"]
    serving = subprocess.Popen(
        [version.python, *command],
        env=version.environment(data.folder),
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (root / ".dieselfs").exists():
            assert serving.poll() is None, "the mount has ended"
            time.sleep(0.01)
        yield root
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.wait(60)


def put_and_recover(data: Dataset, versions: list[Version], rounds: int) -> None:
    """Whole commands: a put into an empty store, and an index made again from the store alone."""

    def folder_of(version: Version) -> Path:
        return data.folder / f"put-{version.name}"

    def put(version: Version) -> float:
        folder = folder_of(version)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "store").mkdir(parents=True)
        return timed(version, folder, "put", "-q", "-j", "2", f"{data.source}/", "dl://bench")

    def recover(version: Version) -> float:
        folder = folder_of(version)
        shutil.rmtree(folder / "index")
        return timed(version, folder, "recover", "-q", "bench")

    for what, work in (("put", put), ("recover", recover)):
        turns = {
            version.name: lambda version=version, work=work: work(version) for version in versions
        }
        compare(f"dlcmd {what}, {data}", turns, rounds)


def start(data: Dataset, versions: list[Version], rounds: int) -> None:
    """Commands from being typed to their end; a mount to its first READ."""

    def first_read(version: Version) -> float:
        begin = time.perf_counter()
        with contenders.mounted(data, version.kind(), checked=False) as root:
            directory = next(entry for entry in os.scandir(root) if entry.name != ".dieselfs")
            file = next(os.scandir(directory.path))
            Path(file.path).read_bytes()
            return time.perf_counter() - begin

    for arguments in (("--help",), ("ls",), ("ls", "bench")):
        turns = {
            version.name: lambda version=version, arguments=arguments: timed(
                version, data.folder, *arguments
            )
            for version in versions
        }
        compare(f"dlcmd {' '.join(arguments)}", turns, 3 * rounds)
    turns = {version.name: lambda version=version: first_read(version) for version in versions}
    compare("dlcmd mount until the first READ", turns, rounds)


def timed(version: Version, folder: Path, *arguments: str | Path) -> float:
    """Seconds of a whole `dlcmd`."""
    begin = time.perf_counter()
    version.run(folder, "-m", "dieselfs.cli", *arguments)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

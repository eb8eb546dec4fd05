"""Files of all four kinds are damaged at random together: `python -m tests.faults.random_damage
[--count 300] [--seed 1]`.

Each round has a dataset of its own: chunk objects, an index in LMDB, a snapshot that is mounted,
and chunks in node memory, which the next mount of the task adopts after a SIGKILL of the first
one. One to four of these files are damaged. Then every file is read through the mount, and every
command that reads runs; `dlcmd recover` and `dlcmd umount` come last. In the end: no wrong byte, no
process that ended by a signal, no hang. What is refused is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dieselfs.cache.node.task_folder import memory_root
from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.eventually import PATIENCE_S, eventually
from tests.faults.damaged_index import DamagedIndex, damage_at_random
from tests.faults.kept_dataset import Places
from tests.faults.served import NAME, Place, Served
from tests.faults.walking import content_of, name_of, walked
from tests.mount.mounting import is_alive
from tests.own_node_memory import own_node_memory

COUNT = 120
FILES = {name_of(number): content_of(number) for number in range(COUNT)}
KINDS = ("index", "snapshot", "node memory", "chunk")
MOST_AT_ONCE = 4
ENDS = (
    *(ExitCode.OK, ExitCode.TEMPORARY, ExitCode.PARTIAL, ExitCode.INTEGRITY, ExitCode.REPAIRED),
    ExitCode.FOUND,
)
"""The exit codes of commands that meet damage; none is a surprise or an absent file."""
READING = (
    ("ls", "-r", f"dl://{NAME}"),
    ("du", f"dl://{NAME}"),
    ("stat", f"dl://{NAME}/{name_of(7)}"),
    ("snapshot", "ls", NAME),
    ("dataset", "ls"),
    ("gc", NAME),
    ("fsck", NAME),
    ("scrub", NAME),
)


@dataclass(slots=True)
class Outcome:
    """The damage, and the counts of what followed."""

    damaged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    rounds: int = 0
    right_reads: int = 0
    refused_reads: int = 0
    refused_commands: int = 0
    commands: int = 0
    faults: list[str] = field(default_factory=list)
    """Wrong bytes, signals, hangs and unexpected ends, in words."""

    @property
    def count(self) -> int:
        return sum(self.damaged.values())


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file as disks, kernels and careless programs do; say how."""
    size = file.stat().st_size
    file.chmod(0o600)
    how = rng.choice(["bit", "bit", "bytes", "zeros", "cut"])
    if how == "cut":
        os.truncate(file, rng.randrange(size))
        return how
    with open(file, "r+b", buffering=0) as opened:
        for _ in range(rng.randrange(2, 300) if how == "bytes" else 1):
            opened.seek(at := rng.randrange(size))
            was = opened.read(4096 if how == "zeros" else 1)
            opened.seek(at)
            opened.write(bytes(len(was)) if how == "zeros" else bytes([was[0] ^ 1 << at % 8]))
    return how


@dataclass(slots=True)
class Round:
    """One dataset, its mount, and what is damaged."""

    place: Place
    mountpoint: Path
    rng: random.Random
    outcome: Outcome
    done: list[str] = field(default_factory=list)
    """The damage, in words."""
    index: DamagedIndex = field(init=False)

    def __post_init__(self) -> None:
        folder = self.place.folder
        data = folder / "index/data.mdb"
        places = Places(f"file://{folder}/store", f"lmdb://{folder}/index")
        self.index = DamagedIndex(folder, places, data, data.read_bytes())

    def run(self, count: int) -> None:
        kinds = [self.rng.choice(KINDS) for _ in range(count)]
        options = ("--task", f"damage-{os.getpid()}", "--prefill", "0")
        mount = self.place.mount(self.mountpoint, *options)
        try:
            half = self.rng.sample(sorted(FILES), COUNT // 2)
            assert mount.wrong({name: FILES[name] for name in half}) == []
            if "node memory" in kinds:
                mount.kill()
                self._damage("node memory", kinds.count("node memory"))
                mount = self.place.mount(self.mountpoint, *options)
            for kind in ("snapshot", "chunk", "index"):
                self._damage(kind, kinds.count(kind))
            self._read(mount)
            self._ask()
            self._unmount(mount)
        finally:
            mount.end()

    def _damage(self, kind: str, count: int) -> None:
        for _ in range(count):
            if kind == "index":
                how = damage_at_random(self.index, self.rng)
            else:
                how = damage(self.rng.choice(sorted(self._files(kind))), self.rng)
            self.done.append(f"{kind}: {how}")
            self.outcome.damaged[kind] += 1

    def _files(self, kind: str) -> Iterator[Path]:
        match kind:
            case "node memory":
                yield from (memory_root() / f"damage-{os.getpid()}/chunks").glob("[!.]*")
            case "snapshot":
                yield from (self.place.folder / "snapshots").glob("*.snapshot")
            case _:
                chunks = self.place.folder / "store/datasets" / NAME / "chunks"
                yield from filter(Path.is_file, chunks.rglob("*"))

    def _read(self, mount: Served) -> None:
        servers = mount.servers()
        found = walked(mount.path, COUNT, PATIENCE_S)
        assert found.wrong == []
        assert mount.servers() == servers, mount.log
        self.outcome.right_reads += found.right
        self.outcome.refused_reads += found.refused

    def _ask(self) -> None:
        for command in READING:
            self._command(*command)
        self._command("scrub", "--cached")
        self._get("before")
        is_whole = self._command("recover", NAME, "--yes") != ExitCode.INTEGRITY
        if not is_whole:  # the header of a chunk is damaged
            assert self._command("recover", NAME, "--yes", "--without-chunks") == ExitCode.OK
        self._get("after", is_whole)

    def _get(self, name: str, is_whole: bool = True) -> None:
        target = self.place.folder / name
        code = self._command("get", f"dl://{NAME}/", f"{target}/")
        got = {
            os.fspath(file.relative_to(target)): file.read_bytes()
            for file in target.rglob("*")
            if file.is_file() and not file.name.startswith(".")
        }
        wrong = [path for path, data in got.items() if FILES.get(path) != data]
        assert wrong == [], f"get {name}"
        if code == ExitCode.OK and is_whole:
            assert got.keys() == FILES.keys(), f"get {name} ended with 0"

    def _command(self, *arguments: str) -> int:
        done = self.place.dlcmd(*arguments)
        said = f"dlcmd {' '.join(arguments)}: {done.returncode}: {done.stderr}"
        assert done.returncode in ENDS, said
        assert "Traceback" not in done.stderr, said
        self.outcome.commands += 1
        self.outcome.refused_commands += done.returncode != ExitCode.OK
        return done.returncode

    def _unmount(self, mount: Served) -> None:
        self._command("umount", str(mount.path))
        eventually(lambda: not is_alive(mount.pid), "the end of the daemon")


def damage_at_random_everywhere(folder: Path, count: int, seed: int) -> Outcome:
    """Damage `count` files in all; what was seen. It goes on after what goes wrong."""
    rng, outcome = random.Random(seed), Outcome()
    whole = Place(folder / "whole").holding(FILES)
    while outcome.count < count:
        now = min(rng.randrange(1, MOST_AT_ONCE + 1), count - outcome.count)
        place = Place(folder / f"round-{outcome.rounds}")
        shutil.copytree(whole.folder, place.folder)
        mountpoint = place.folder / "mnt"
        one = Round(place, mountpoint, rng, outcome)
        with own_node_memory():
            try:
                one.run(now)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                outcome.faults.append(f"round {outcome.rounds}, {', '.join(one.done)}: {error!r}")
                print(outcome.faults[-1], file=sys.stderr)
        outcome.rounds += 1
        shutil.rmtree(place.folder)
        if sys.stderr.isatty():
            print(f"{outcome.count} of {count}", end="\r", file=sys.stderr)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dieselfs-damage-", dir="/dev/shm") as folder:
        outcome = damage_at_random_everywhere(Path(folder), chosen.count, chosen.seed)
    found: dict[str, Any] = {name: getattr(outcome, name) for name in Outcome.__slots__}
    print(json.dumps(found, indent=2))
    return os.EX_SOFTWARE if outcome.faults else os.EX_OK


if __name__ == "__main__":
    sys.exit(main())

"""How long after `kill -9` of a mount does the next one serve a file from node memory, and when has
it verified all chunks that it found?

A dataset of files of 256 KiB in chunks of 4 MiB is read whole, supervisor and server are killed,
and `dlcmd mount` is typed again. *first read* is from there until one file of another chunk each
time was read and compared. *verified* is until no file of the task's folder is hidden any more.
*trusting* is the same adoption without verification, in turns. Expectation: a chunk takes 0.5 ms to
copy and hash, so 4 GiB take 0.6 s of one core, beside which the mount starts; the first read waits
for its own chunk alone.

    python -m benchmarks.bench_adoption [--gib 4] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    DLCMD,
    REPOSITORY,
    dlcmd,
    dlcmd_environment,
    make_tree,
    report,
    run_rounds,
    scratch,
    spread,
)

NAME, TASK = "bench", "adoption"
FILE_BYTES = 256 << 10
TAKEN_OUT = REPOSITORY / "tests" / "faults" / "taken_out"
TRUSTING = "dieselfs.cache.node.chunk_files:file_matches=true"


@dataclass(slots=True)
class Mounts:
    """Mounts of the dataset, one after the other, and what they take."""

    folder: Path
    source: Path
    memory: Path
    files: list[Path]
    memory_mib: int
    pid: int = 0

    @property
    def mountpoint(self) -> Path:
        return self.folder / "mnt"

    def start(self, *, trusting: bool = False) -> None:
        environment = dlcmd_environment(self.folder)
        environment |= {"DIESELFS_MEMORY_FOLDER": str(self.memory), "PYTHONPATH": str(REPOSITORY)}
        if trusting:
            environment["PYTHONPATH"] = f"{TAKEN_OUT}:{REPOSITORY}"
            environment["DIESELFS_TAKEN_OUT"] = TRUSTING
        command = [*DLCMD, "mount", "--json", "--task", TASK, "--prefill", "0", "--front", "fuse"]
        command += ["--memory", f"{self.memory_mib}MiB", NAME, str(self.mountpoint)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        self.pid = json.loads(done.stdout)["pid"]

    def kill(self) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)

    def read(self, file: Path) -> None:
        assert (self.mountpoint / file).read_bytes() == (self.source / file).read_bytes()

    def is_verified(self) -> bool:
        names = os.listdir(self.memory / f"dieselfs-{os.geteuid()}" / TASK / "chunks")
        return not any(name.startswith(".adopted.") for name in names)

    def cpu_s(self) -> float:
        """The processor time of the server and its supervisor."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ticks = 0
        for pid in (str(self.pid), *children):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    count = int(chosen.gib * (1 << 30) / FILE_BYTES)
    memory = Path(tempfile.mkdtemp(prefix="dieselfs-bench-", dir="/dev/shm"))
    with scratch("adoption") as folder:
        source = folder / "source"
        make_tree(source, count, 16, FILE_BYTES)
        dlcmd("put", "-q", f"{source}/", f"dl://{NAME}", folder=folder)
        files = sorted(path.relative_to(source) for path in source.rglob("*.jpg"))
        mounts = Mounts(folder, source, memory, files, int(chosen.gib * 1200) + 64)
        mounts.mountpoint.mkdir()
        verified: dict[bool, list[float]] = {True: [], False: []}
        processor: dict[bool, list[float]] = {True: [], False: []}
        draw = random.Random(1)

        def again(trusting: bool) -> float:
            mounts.kill()
            started = time.perf_counter()
            mounts.start(trusting=trusting)
            mounts.read(draw.choice(files))
            first_s = time.perf_counter() - started
            while not mounts.is_verified():
                time.sleep(0.005)
            verified[trusting].append(time.perf_counter() - started)
            processor[trusting].append(mounts.cpu_s())
            return first_s

        try:
            mounts.start()
            for file in files:
                mounts.read(file)
            taken = run_rounds(
                {"verifying": lambda: again(False), "trusting": lambda: again(True)},
                chosen.rounds,
                alternates=True,
            )
            node = json.loads((mounts.mountpoint / ".dieselfs/stats.json").read_text())
            first = {name: spread(taken.seconds[name]) for name in taken.seconds}
            report(
                "first read after kill -9",
                first_read_more_s=taken.median("verifying") - taken.median("trusting"),
                first_read_s=first,
                all_verified_s=spread(verified[False]),
                all_revealed_s=spread(verified[True]),
                server_cpu_s={
                    "verifying": spread(processor[False]),
                    "trusting": spread(processor[True]),
                },
                cached_bytes=node["cache"]["node"]["cached_bytes"],
                fetched_again=node["cache"]["node"]["fetches"],
                rounds=chosen.rounds,
            )
        finally:
            dlcmd("umount", mounts.mountpoint, folder=folder)
            shutil.rmtree(memory, ignore_errors=True)


if __name__ == "__main__":
    main()

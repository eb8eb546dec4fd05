"""Does memory stay flat with the number of files?

Peak resident memory of all processes of `dlcmd put` (their sum, sampled) for n and 3 n files of 4
KiB, and that of a mount's daemon (less the pages of the snapshot's map) while all files of n and 3
n are listed, stat'ed and read in chunk-wise order. Expectation: buffers for open chunks (64 x 4 MiB
a process at the most), nothing per file.

    python -m benchmarks.bench_memory [--files 200000] [--what put|mount]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from pathlib import Path

from benchmarks.harness import DLCMD, REPOSITORY, dlcmd, make_tree, report, scratch


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is the process's own: not file-backed maps."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:")
    )


def family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(grandchild for child in children for grandchild in family(int(child)))]


def peak_of_put(source: Path, folder: Path) -> int:
    (folder / "store").mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "PYTHONPATH": str(REPOSITORY),
    }
    process = subprocess.Popen(
        [*DLCMD, "put", "-q", "-j", "2", f"{source}/", "dl://bench"], env=environment
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(anonymous_bytes, family(process.pid))))
        time.sleep(0.01)
    assert process.returncode == 0
    return peak


def peak_of_mount(folder: Path, mountpoint: Path) -> int:
    mountpoint.mkdir()
    dlcmd("snapshot", "create", "bench", folder=folder)
    dlcmd("mount", "--cache-memory", "64MiB", "dl://bench", mountpoint, folder=folder)
    try:
        pid = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())["pid"]
        peak = 0
        scan = threading.Thread(target=_read_all, args=(mountpoint,))
        scan.start()
        while scan.is_alive():
            peak = max(peak, anonymous_bytes(pid))
            time.sleep(0.01)
        return peak
    finally:
        dlcmd("umount", mountpoint, folder=folder)


def _read_all(mountpoint: Path) -> None:
    """Every file is listed, stat'ed and read, in chunk-wise order: another one would fetch a chunk
    for each file."""
    for directory, _, names in os.walk(mountpoint):
        for name in names:
            os.stat(f"{directory}/{name}")
    order = (mountpoint / ".dieselfs/shuffle/seed=1,epoch=0,group=8,rank=0,world=1").read_text()
    for path in order.split("\n")[:-1]:
        (mountpoint / path).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200_000, help="and three times as many")
    parser.add_argument("--what", choices=["put", "mount", "both"], default="both")
    options = parser.parse_args()
    wanted = ["put", "mount"] if options.what == "both" else [options.what]
    peaks: dict[str, list[int]] = {what: [] for what in wanted}
    for files in (options.files, 3 * options.files):
        with scratch("memory") as folder:
            make_tree(folder / "source", files, 100, 4096)
            of_put = peak_of_put(folder / "source", folder)
            if "put" in peaks:
                peaks["put"].append(of_put)
            if "mount" in peaks:
                peaks["mount"].append(peak_of_mount(folder, folder / "mountpoint"))
    for what, (small, large) in peaks.items():
        report(
            f"peak memory of {what}, {options.files} and {3 * options.files} files",
            ratio=large / small,
            small_mib=small / 2**20,
            large_mib=large / 2**20,
        )


if __name__ == "__main__":
    main()

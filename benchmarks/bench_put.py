"""Does packing a directory keep up with tar?

`dlcmd put -j 2` of a warm directory, index included, the whole command timed, against `tar cf` of
the same tree to the same disk and a sync of that file: both durable. Expectation: tar does one
thread of open, fstat, read and write; two packers do that and the hashing, and one core's worth of
index, so about as fast as tar on two cores. The snapshot that a put publishes by default is not in
it: `bench_publish` says what that costs.

    python -m benchmarks.bench_put                  # 500,000 files of 4 KiB, 5,000 of 110 KiB
    python -m benchmarks.bench_put --files 50000 --rounds 3
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from benchmarks.harness import dlcmd, empty, make_tree, report, run_rounds, scratch, spread, warm


def compare(files: int, size_bytes: int, rounds: int, folder: Path) -> None:
    source, ours, theirs = folder / "source", folder / "ours", folder / "theirs"
    make_tree(source, files, 100, size_bytes)
    warm(source)

    def put() -> None:
        dlcmd("put", "-q", "-j", "2", "--no-publish", f"{source}/", "dl://bench", folder=ours)

    def tar() -> None:
        archive = theirs / "source.tar"
        subprocess.run(["tar", "cf", archive, "-C", source, "."], check=True)
        subprocess.run(["sync", archive], check=True)

    def clean() -> float:
        empty(ours)
        empty(theirs)
        return 0.0

    times = run_rounds(
        {"clean": clean, "dlcmd put": put, "clean again": clean, "tar + sync": tar}, rounds
    )
    report(
        f"dlcmd put -j 2 of {files} files of {size_bytes} bytes against tar + sync",
        ratio=spread(times.ratios("dlcmd put", "tar + sync")),
        put_files_per_s=files / times.median("dlcmd put"),
        tar_files_per_s=files / times.median("tar + sync"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", type=int, default=500_000, help="of 4 KiB; a hundredth as many of 110 KiB"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for files, size_bytes in ((options.files, 4096), (max(options.files // 100, 1000), 110 << 10)):
        with scratch("put") as folder:
            compare(files, size_bytes, options.rounds, folder)


if __name__ == "__main__":
    main()
